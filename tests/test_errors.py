"""The tree of errors: what a handler catches, and what messages carry."""

from __future__ import annotations

import inspect
import re

import pytest

from timespine import errors
from timespine.errors import (
    SHOWN_MAX,
    Conflict,
    InlineBudgetExceeded,
    NotSealed,
    SinceError,
    TimespineError,
    UpperMismatch,
    UsageError,
    short_repr,
)
from timespine.hints import Hint

CLASSES = {name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}


def test_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([|` -]*)([A-Z]\w+)(?=$|\s)", line)
        if found is None:
            continue
        depth, name = len(found[1]) // 3, found[2]
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else "Exception"
    assert drawn == {name: each.__bases__[0].__name__ for name, each in CLASSES.items()}


def test_every_error_is_a_timespine_error_and_only_usage_is_a_value_error() -> None:
    assert all(issubclass(each, TimespineError) for each in CLASSES.values())
    usage = {"UsageError", "DiffOverflow", "InvalidRows", "LateRows", "SchemaChanged", "UnknownCollection"}
    usage |= {"OwnedCollection", "UnsupportedType", "UnsupportedView", "InvalidCondition", "ArrangementMisfit"}
    usage |= {
        "IncompleteCopy",
        "CollectionExists",
        "CollectionInUse",
        "NameBlocked",
        "ReadOnlyStore",
        "StoreClosed",
        "WrongProcess",
    }
    assert {name for name, each in CLASSES.items() if issubclass(each, ValueError)} == usage


def test_an_unknown_collection_is_a_key_error_that_reads_like_any_other_error() -> None:
    error = errors.UnknownCollection("there is no collection 'x'", "x")
    assert isinstance(error, KeyError)
    assert isinstance(error, UsageError)
    assert (str(error), error.name) == ("there is no collection 'x'", "x")


def test_upper_mismatch_carries_both_uppers() -> None:
    error = UpperMismatch("[3]", "[5]")
    assert (error.expected, error.actual) == ("[3]", "[5]")
    assert "[3]" in str(error)
    assert "[5]" in str(error)
    assert isinstance(error, Conflict)


def test_since_error_carries_what_was_asked_and_what_there_is() -> None:
    error = SinceError((3,), "[5]")
    assert (error.asked, error.since) == ((3,), "[5]")
    assert "3" in str(error)
    assert "[5]" in str(error)


def test_not_sealed_carries_what_was_asked_and_what_there_is() -> None:
    error = NotSealed((3, 4), "[2]")
    assert "leave `as_of` out" in str(error)
    assert (error.asked, error.upper) == ((3, 4), "[2]")
    assert "(3, 4)" in str(error)


def test_inline_budget_carries_the_numbers() -> None:
    error = InlineBudgetExceeded(5, 7, 10)
    assert (error.asked, error.used, error.budget) == (5, 7, 10)


def test_shown_values_are_short() -> None:
    assert short_repr("abc") == "'abc'"
    assert len(short_repr("x" * 10_000)) == SHOWN_MAX + 3


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(("value", "text"), [(Hostile(), "<Hostile>"), (10**5000, "<int>")], ids=["hostile", "long"])
def test_values_that_cannot_be_shown_are_named(value: object, text: str) -> None:
    assert short_repr(value) == text


def test_usage_error_is_caught_as_a_value_error() -> None:
    with pytest.raises(ValueError, match="fix"):
        raise UsageError("fix the call")


def test_errors_travel_between_processes() -> None:
    import copy

    from timespine import errors

    unknown = errors.UnknownCollection("no collection x", "x")
    for error in (
        unknown,
        errors.UpperMismatch(1, 2),
        errors.SinceError(3, 4),
        errors.Fenced("gone", in_doubt=True),
        NotSealed(1, 2),
    ):
        again = copy.copy(error)  # by the same protocol as pickle
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_a_hint_is_a_code_that_the_library_puts_into_words() -> None:
    error = UsageError("there is no store", hint=Hint("create-store"))
    assert (error.message, error.hint) == ("there is no store", Hint("create-store"))
    assert str(error) == "there is no store; create it with timespine.open(path) or `timespine init`"
    inside = error.in_context("here")
    assert (type(inside), inside.message, inside.hint) == (UsageError, "here: there is no store", error.hint)


def test_rows_that_do_not_fit_can_be_called_something_else() -> None:
    error = errors.InvalidRows.of_row("n", 3, "does not fit int8")
    assert str(error) == "column 'n': row 3 does not fit int8"
    assert (error.row, error.at("line 4")) == (3, "column 'n': line 4 does not fit int8")
    assert errors.InvalidRows("no rows").at("line 4") == "no rows"
