"""Typed expressions as expressions of Polars, operand by operand, with Spark's answers.

Traps that this avoids (tests/spark/test_view_expressions.py compares each function with Spark):

- Polars keeps the larger scale of a decimal product, and rounds: the left side gets the digits of the product first.
- Whole numbers wrap: they are worked out in 128 bits and cast back strictly, so that an overflow is an error.
- Division by one value for all rows multiplies by its reciprocal, and zero minus a double is its negation. Polars has
  one value for constants, for columns from a frame of one row (a side of a cross join, a part of a union), and for a
  CASE all of whose rows take one branch: each operand of an operation on doubles is multiplied by a column of ones, so
  that what a row gives does not depend on the rows beside it.
- A cast to fewer decimal places rounds halves to even: in Spark, away from zero.
- A comparison of a constant with a CASE loses rows of a frame in several chunks: frames are made one chunk first, and
  every evaluation includes a column, so that a result of another length is an error.
- A remainder has the sign of the divisor: in Spark, that of the dividend.

Every decimal of a plan has 38 digits in memory, and the scale of its type. What only some values would break has a
guard: if a row fails it, the whole evaluation is declined, and Spark has to do it.
"""

from __future__ import annotations

import datetime
import functools
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsFloat, cast

import polars as pl
import pyarrow as pa

from timespine.views.engine.decimal_digits import WIDE, half_up, scaled, unscaled
from timespine.views.plan.expressions import CHAINS, DIGITS, FIELD, Call, Expression, Literal, PlanColumn, columns_of

WEIGHT = "_w"
"""The column of counts."""

_QUARTER = 1 << 125
"""What may be doubled, and added to another such number, in 128 bits."""

_ONES = "_ones"
"""The column of ones that operands of doubles are multiplied by."""

NEGATED_DIGITS = 34
"""The digits to which Spark rounds a decimal when it negates it."""


POLARS_FAILURES = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What Polars raises if it cannot compute something. A panic is not an Exception: no other handler catches it."""

_CALENDAR_DAYS = (-96_465_292, 95_026_236)
"""The first and the last day from 1970 on that Polars knows the year of: those of the years -262143 and 262142."""


class Declined(Exception):
    """This process cannot be sure of Spark's answer for these rows; the message says why."""


def declined_by(error: BaseException) -> Declined:
    """Make the refusal of rows that Polars cannot compute."""
    return Declined(str(error).partition("\n")[0])


@functools.lru_cache(1024)
def memory_type(given: pa.DataType) -> Any:
    """Return the type of a column in memory."""
    if pa.types.is_decimal(given):
        return pl.Decimal(DIGITS, given.scale)
    if pa.types.is_null(given):
        return pl.Null
    return pl.Series(pl.from_arrow(pa.array([], given))).dtype


def to_memory(frame: pl.DataFrame) -> pl.DataFrame:
    """Give all decimals of a frame 38 digits."""
    wide = [
        pl.col(name).cast(pl.Decimal(DIGITS, kind.scale))
        for name, kind in frame.schema.items()
        if isinstance(kind, pl.Decimal) and kind.precision != DIGITS
    ]
    return frame.with_columns(wide) if wide else frame


class Lowering:
    """The lowering of some expressions, with the guards that their rows must pass."""

    def __init__(self) -> None:
        self.guards: list[tuple[pl.Expr, str]] = []
        """Conditions that no row may satisfy, and what is wrong with one that does."""
        self.has_doubles = False
        """Whether an expression reads the column of ones."""
        self._done: dict[int, tuple[Expression, pl.Expr]] = {}
        """What was lowered, by the identity of the call."""

    def lower(self, expression: Expression) -> pl.Expr:
        """Return an expression of Polars."""
        if isinstance(expression, PlanColumn):
            return pl.col(expression.name)
        if isinstance(expression, Literal):
            return pl.lit(expression.value).cast(memory_type(expression.type))
        # SUBTLE: the parts are lowered first, so that there is no frame for each level of an expression: a refresh
        # may be called from a deep stack (test_deep_queries.py).
        waiting: list[Call] = [expression]
        while waiting:
            each = waiting[-1]
            below = [part for part in each.args if isinstance(part, Call) and id(part) not in self._done]
            if below:
                waiting.extend(reversed(below))
                continue
            waiting.pop()
            if id(each) not in self._done:
                self._done[id(each)] = (each, self._lowered(each))
        return self._done[id(expression)][1]

    def _lowered(self, expression: Call) -> pl.Expr:
        made = _FUNCTIONS.get(expression.function)
        if made is None:
            raise Declined(f"{expression.function} is not on the list of functions of this process")
        return made(self, expression)

    def refuse(self, condition: pl.Expr, why: str) -> None:
        """Add a guard."""
        self.guards.append((condition.any(), why))

    def in_calendar(self, expression: Expression) -> pl.Expr:
        """Return a date or a timestamp, and decline those that are beyond the calendar of Polars.

        SUBTLE: beyond it, parts of dates are null, and truncations and casts panic. The guards of one evaluation are
        looked at together, so those must not panic either: values are clipped (test_far_dates.py).
        """
        made = self.lower(expression)
        first, last = _CALENDAR_DAYS
        if pa.types.is_timestamp(expression.type):
            if expression.type.unit == "ns":
                return made
            day = 86_400 * (1_000_000 if expression.type.unit == "us" else 1000)
            first, last = first * day, (last + 1) * day - 1
        number = made.to_physical()
        self.refuse((number < first) | (number > last), "a date that is too far from 1970")
        return number.clip(first, last).cast(memory_type(expression.type))

    def beside_double(self, expression: Expression) -> pl.Expr:
        """Return an operand of an operation on doubles, with a value of its own for each row."""
        self.has_doubles = True
        if isinstance(expression, Literal):
            value = None if expression.value is None else float(cast(SupportsFloat, expression.value))
            return each_row(pl.lit(value, pl.Float64))
        return each_row(self.lower(expression))

    def select(self, frame: pl.DataFrame, outputs: Iterable[pl.Expr]) -> pl.DataFrame:
        """Evaluate expressions over a frame; raise Declined if a guard finds a row, or a value overflows."""
        # SUBTLE: Polars compares a constant with a CASE chunk by chunk, and gets fewer rows (test_engine.py).
        frame = frame.rechunk()
        if self.has_doubles:
            frame = with_ones(frame)
        try:
            if self.guards:
                checks = [condition.alias(str(place)) for place, (condition, _) in enumerate(self.guards)]
                found = frame.select(checks).row(0) if len(frame) else ()
                for hit, (_, why) in zip(found, self.guards, strict=False):
                    if hit:
                        raise Declined(why)
            return frame.select(list(outputs))
        except POLARS_FAILURES as error:
            raise declined_by(error) from error


def with_ones(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the column of ones that `each_row` reads."""
    return frame.with_columns(pl.repeat(1.0, len(frame), dtype=pl.Float64, eager=True).alias(_ONES))


def each_row(operand: pl.Expr) -> pl.Expr:
    """Return an operand of doubles that Polars has a value of for each row.

    SUBTLE: without it, Polars divides by one value for all rows through its reciprocal, whose quotients differ in the
    last digit: a retraction then misses its row (test_doubles_by_row.py).
    """
    return operand * pl.col(_ONES)


def keep_rows(frame: pl.DataFrame, condition: Expression) -> pl.DataFrame:
    """Keep the rows for which a condition is true."""
    if not len(frame):
        return frame
    lowering = Lowering()
    made = lowering.lower(condition)
    kept = lowering.select(frame, [made.alias("keep"), pl.col(frame.columns[0]).alias("_rows")])
    return frame.filter(kept["keep"].fill_null(False))


def evaluate_columns(
    frame: pl.DataFrame, outputs: Sequence[tuple[str, Expression]], keep: Sequence[str] = ()
) -> pl.DataFrame:
    """Evaluate expressions over the rows of a frame, and keep some columns."""
    lowering = Lowering()
    made = [lowering.lower(each).alias(name) for name, each in outputs]
    names = [pl.col(name) for name in keep]
    if not names and made:  # constants alone give one row: a column gives their number
        first = frame.columns[0]
        return lowering.select(frame, [*made, pl.col(first).alias("_rows")]).drop("_rows")
    return lowering.select(frame, [*made, *names])


# The functions.

LowerCall = Callable[[Lowering, Call], pl.Expr]
_FUNCTIONS: dict[str, LowerCall] = {}


def _on(*names: str) -> Callable[[LowerCall], LowerCall]:
    def register(made: LowerCall) -> LowerCall:
        for name in names:
            _FUNCTIONS[name] = made
        return made

    return register


def listed(function: str) -> bool:
    """Return whether the process computes a function."""
    return function in _FUNCTIONS


def _args(lowering: Lowering, call: Call) -> list[pl.Expr]:
    return [lowering.lower(each) for each in call.args]


@_on("and", "or", "not", "is null", "coalesce")
def _logic(lowering: Lowering, call: Call) -> pl.Expr:
    args = _args(lowering, call)
    if call.function in CHAINS:
        return _balanced(args, operator.and_ if call.function == "and" else operator.or_)
    if call.function == "not":
        return ~args[0]
    return args[0].is_null() if call.function == "is null" else pl.coalesce(args)


def _balanced(conditions: list[pl.Expr], join: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> pl.Expr:
    """Join conditions by AND or OR, halves with halves: Polars has a frame for each level of an expression."""
    if len(conditions) == 1:
        return conditions[0]
    half = (len(conditions) + 1) // 2
    return join(_balanced(conditions[:half], join), _balanced(conditions[half:], join))


@_on("in")
def _in(lowering: Lowering, call: Call) -> pl.Expr:
    """Look for a value among constants: unknown for null, and where nothing is found beside a null."""
    values = [each.value for each in call.args[1:] if isinstance(each, Literal)]
    known = [each for each in values if each is not None]
    listed_values = pl.lit(pl.Series(known, dtype=memory_type(call.args[0].type))).implode()
    found = lowering.lower(call.args[0]).is_in(listed_values)
    return found if len(known) == len(values) else pl.when(found).then(True)


@_on("=", "<>", "<", "<=", ">", ">=", "<=>")
def _compare(lowering: Lowering, call: Call) -> pl.Expr:
    one, two = _args(lowering, call)
    function = call.function
    if not columns_of(call.args[0]) and columns_of(call.args[1]):
        # SUBTLE: a constant stands on the right: on the left of a CASE it gives too few rows (test_planted_views.py).
        one, two, function = two, one, _FLIPPED.get(function, function)
    made: dict[str, Callable[[], pl.Expr]] = {
        "=": lambda: one == two,
        "<>": lambda: one != two,
        "<": lambda: one < two,
        "<=": lambda: one <= two,
        ">": lambda: one > two,
        ">=": lambda: one >= two,
        "<=>": lambda: one.eq_missing(two),
    }
    return made[function]()


_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@_on("struct")
def _struct(lowering: Lowering, call: Call) -> pl.Expr:
    return pl.struct([each.alias(f"a{place}") for place, each in enumerate(_args(lowering, call))])


@_on(FIELD)
def _field(lowering: Lowering, call: Call) -> pl.Expr:
    value, name = call.args
    assert isinstance(name, Literal)
    return lowering.lower(value).struct.field(str(name.value)).cast(memory_type(call.type))


@_on("array")
def _array(lowering: Lowering, call: Call) -> pl.Expr:
    return pl.concat_list(_args(lowering, call)).cast(memory_type(call.type))


@_on("case")
def _case(lowering: Lowering, call: Call) -> pl.Expr:
    *pairs, otherwise = _args(lowering, call)
    made: Any = pl
    for place in range(0, len(pairs), 2):
        made = made.when(pairs[place].fill_null(False)).then(pairs[place + 1])
    result: pl.Expr = made.otherwise(otherwise)
    return result


@_on("greatest", "least")
def _extreme(lowering: Lowering, call: Call) -> pl.Expr:
    """Compare one by one, without nulls: NaN is the greatest number, and max_horizontal leaves it out."""
    made, *others = _args(lowering, call)
    is_constant = not columns_of(call.args[0])
    for each, argument in zip(others, call.args[1:], strict=True):
        if call.function == "greatest":
            is_beyond = each > made if is_constant else made < each  # a constant stands on the right, see `_compare`
        else:
            is_beyond = each < made if is_constant else made > each
        made = pl.when(made.is_null() | is_beyond.fill_null(False)).then(each).otherwise(made)
        is_constant = is_constant and not columns_of(argument)
    return made


@_on("cast")
def _cast(lowering: Lowering, call: Call) -> pl.Expr:
    before, after = call.args[0].type, call.type
    if pa.types.is_date(before) and not pa.types.is_date(after):
        return lowering.in_calendar(call.args[0]).cast(memory_type(after))
    (argument,) = _args(lowering, call)
    if pa.types.is_timestamp(before) and pa.types.is_date(after):
        return argument.dt.date()
    if pa.types.is_decimal(before) and pa.types.is_decimal(after) and after.scale < before.scale:
        digits, by = unscaled(argument, before.scale), 10 ** (before.scale - after.scale)
        lowering.refuse(digits.abs() > _QUARTER, "a decimal with too many digits to be rounded")
        return scaled(half_up(digits, pl.lit(by, WIDE)), after.scale)
    return argument.cast(memory_type(after))


@_on("+", "-", "*")
def _arithmetic(lowering: Lowering, call: Call) -> pl.Expr:
    if pa.types.is_floating(call.type):
        one, two = map(lowering.beside_double, call.args)
        return {"+": one + two, "-": one - two, "*": one * two}[call.function]
    one, two = _args(lowering, call)
    if pa.types.is_integer(call.type):
        one, two = one.cast(WIDE), two.cast(WIDE)
        done = {"+": one + two, "-": one - two, "*": one * two}[call.function]
        return done.cast(memory_type(call.type), strict=True)
    if pa.types.is_decimal(call.type) and call.function == "*":
        return one.cast(pl.Decimal(DIGITS, call.type.scale)) * two
    return {"+": one + two, "-": one - two, "*": one * two}[call.function]


@_on("/")
def _divide(lowering: Lowering, call: Call) -> pl.Expr:
    is_double = pa.types.is_floating(call.type)
    one, two = map(lowering.beside_double, call.args) if is_double else _args(lowering, call)
    lowering.refuse(two == 0, "a division by zero")
    if is_double:
        return one / two
    left, right = call.args
    shift = call.type.scale + right.type.scale - left.type.scale
    number, divisor = unscaled(one, left.type.scale), unscaled(two, right.type.scale)
    up, down = 10 ** max(shift, 0), 10 ** max(-shift, 0)
    for digits, factor in ((number, up), (divisor, down)):
        lowering.refuse(digits.abs() > _QUARTER // factor, "a quotient of decimals with too many digits")
    number, divisor = number * up, divisor * down
    return scaled(half_up(number, divisor), call.type.scale)


@_on("%", "div")
def _remainder(lowering: Lowering, call: Call) -> pl.Expr:
    one, two = (each.cast(WIDE) for each in _args(lowering, call))
    lowering.refuse(two == 0, "a division by zero")
    zero = pl.lit(0, WIDE)
    if call.function == "%":
        rest = one.abs() % two.abs()
        return pl.when(one < 0).then(zero - rest).otherwise(rest).cast(memory_type(call.type), strict=True)
    whole = one.abs() // two.abs()
    return pl.when((one < 0) != (two < 0)).then(zero - whole).otherwise(whole).cast(memory_type(call.type), strict=True)


@_on("negative", "abs")
def _sign(lowering: Lowering, call: Call) -> pl.Expr:
    (argument,) = _args(lowering, call)
    if pa.types.is_decimal(call.type):
        digits = unscaled(argument, call.type.scale)
        lowering.refuse(digits.abs() >= 10**NEGATED_DIGITS, f"a decimal of more than {NEGATED_DIGITS} digits, negated")
    if not pa.types.is_integer(call.type):
        return -argument if call.function == "negative" else argument.abs()
    wide = argument.cast(WIDE)
    done = pl.lit(0, WIDE) - wide if call.function == "negative" else wide.abs()
    return done.cast(memory_type(call.type), strict=True)


# Text.


def like_pattern(pattern: str) -> str:
    """Return the regular expression of a LIKE pattern, with a backslash as the escape."""
    parts: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, None)
            if escaped is None or escaped not in "%_\\":
                raise Declined("a LIKE pattern in which a backslash escapes nothing")
            parts.append(re.escape(escaped))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter) or re.escape(letter))
    return rf"(?s)\A{''.join(parts)}\z"


@_on("like")
def _like(lowering: Lowering, call: Call) -> pl.Expr:
    pattern = call.args[1]
    assert isinstance(pattern, Literal)
    return lowering.lower(call.args[0]).str.contains(like_pattern(str(pattern.value)))


@_on("upper", "lower")
def _letters(lowering: Lowering, call: Call) -> pl.Expr:
    (text,) = _args(lowering, call)
    lowering.refuse(~text.str.contains(r"\A[\x00-\x7F]*\z"), f"{call.function} of a text with other than ASCII letters")
    return text.str.to_uppercase() if call.function == "upper" else text.str.to_lowercase()


@_on("length", "concat", "substring", "trim", "ltrim", "rtrim", "starts with", "ends with", "contains", "replace")
def _text(lowering: Lowering, call: Call) -> pl.Expr:
    text, *others = _args(lowering, call)
    values: list[Any] = [each.value for each in call.args[1:] if isinstance(each, Literal)]
    made: dict[str, Callable[[], pl.Expr]] = {
        "length": lambda: text.str.len_chars().cast(pl.Int32),
        "concat": lambda: pl.concat_str([text, *others]),
        "substring": lambda: text.str.slice(max(values[0] - 1, 0), *values[1:]),
        "trim": lambda: text.str.strip_chars(" "),
        "ltrim": lambda: text.str.strip_chars_start(" "),
        "rtrim": lambda: text.str.strip_chars_end(" "),
        "starts with": lambda: text.str.starts_with(values[0]),
        "ends with": lambda: text.str.ends_with(values[0]),
        "contains": lambda: text.str.contains(values[0], literal=True),
        "replace": lambda: text.str.replace_all(values[0], values[1], literal=True),
    }
    return made[call.function]()


# Dates.


@_on("year", "month", "day", "quarter", "day of year", "hour", "minute")
def _date_part(lowering: Lowering, call: Call) -> pl.Expr:
    date = lowering.in_calendar(call.args[0])
    parts = {
        "year": date.dt.year,
        "month": date.dt.month,
        "day": date.dt.day,
        "quarter": date.dt.quarter,
        "day of year": date.dt.ordinal_day,
        "hour": date.dt.hour,
        "minute": date.dt.minute,
    }
    return parts[call.function]().cast(pl.Int32)


@_on("add days", "add months", "days between")
def _date_arithmetic(lowering: Lowering, call: Call) -> pl.Expr:
    date, number = _args(lowering, call)
    if call.function == "days between":
        return date.cast(pl.Int32) - number.cast(pl.Int32)
    if call.function == "add days":
        return (date.cast(pl.Int32).cast(WIDE) + number.cast(WIDE)).cast(pl.Int32, strict=True).cast(pl.Date)
    months = call.args[1]
    assert isinstance(months, Literal)
    return lowering.in_calendar(call.args[0]).dt.offset_by(f"{months.value}mo")


_STEPS = {"YEAR": "1y", "QUARTER": "1q", "MONTH": "1mo", "WEEK": "1w"}
_STEPS |= {"DAY": "1d", "HOUR": "1h", "MINUTE": "1m", "SECOND": "1s"}


@_on("trunc", "date_trunc")
def _start_of(lowering: Lowering, call: Call) -> pl.Expr:
    moment, unit = call.args if call.function == "trunc" else call.args[::-1]
    assert isinstance(unit, Literal)
    return lowering.in_calendar(moment).dt.truncate(_STEPS[str(unit.value)])


def fold_constant(expression: Expression) -> Expression:
    """Evaluate an expression without columns."""
    frame = pl.DataFrame({"_": [0]})
    value = evaluate_columns(frame, [("value", expression)])["value"][0]
    if isinstance(value, datetime.datetime | float):
        return expression  # their Python values may differ in the last digits
    return Literal(value, expression.type)
