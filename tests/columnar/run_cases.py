"""Runs of every kind in a memory blob, under schemas that changed, and what a reader should see of them, naively."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa
from assertions import check
from building import hollow
from hypothesis import strategies as st
from kernel_cases import TYPES, array, key

from timespine.columnar.kernels.consolidate import consolidate
from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.parts.inline_part import encode_inline
from timespine.columnar.parts.part_cache import PartCache
from timespine.columnar.parts.part_stats import describe_updates
from timespine.columnar.parts.part_writer import encode_part
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.predicate.where import col
from timespine.columnar.scan.part_access import Parts
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.scan.visibility import Window
from timespine.columnar.schema.schema import Schema, define
from timespine.columnar.schema.types import can_widen, is_nested, parse_type, type_name
from timespine.config import DEFAULT
from timespine.core.batch import Order, Part, Run, wrap_int64
from timespine.core.encoding.codec import encode_run
from timespine.core.read_plan import apply_parent_bounds
from timespine.location.memory import MemoryBlob
from timespine.model.frontier import Frontier, advance_by

CONFIG = replace(DEFAULT, row_group_rows=3, page_rows=1, bound_bytes=12, stats_bytes=120, inline_part_bytes=1 << 20)
"""Row groups of three rows, a page for each row, and bounds so short that they are cut."""

FLAT = [kind for kind in TYPES if not is_nested(kind)]
WIDER = [(old, new) for old in TYPES for new in TYPES if not is_nested(old) and old != new and can_widen(old, new)] + [
    (pa.decimal128(9, 2), pa.decimal128(20, 2))
]


@dataclass
class Place:
    """One collection: its schemas, its blobs, and how runs get there."""

    schemas: list[Schema]
    config: object = CONFIG
    blob: MemoryBlob = field(default_factory=MemoryBlob)
    collection: str = "orders"
    writer: str = "w1"
    numbers: itertools.count = field(default_factory=lambda: itertools.count(1))

    @property
    def newest(self):
        return self.schemas[-1]

    def parts(self, cache_bytes=1 << 20, **options):
        cache = PartCache(cache_bytes)
        return Parts(self.blob, self.collection, self.schemas.__getitem__, self.config, cache, **options)

    def name(self, prefix="p"):
        return f"{prefix}{next(self.numbers)}"

    def stored(self, table, id, *, is_sorted=True):
        """A part in a blob."""
        name = self.name()
        made = encode_part(
            table.combine_chunks(),
            self.schemas[id],
            id,
            self.collection,
            name,
            self.config,
            is_sorted=is_sorted,
        )
        blob_key = f"{self.collection}/{self.writer}/{name}"
        self.blob.put(blob_key, made.data)
        return Part(blob_key, made.rows, len(made.data), made.diff_sum, meta=made.meta.encode())

    def inline(self, table, id, *, described=True, is_sorted=True):
        """A part that lives in the state."""
        data = encode_inline(table)
        meta = describe_updates(
            table, self.schemas[id], sorted=is_sorted, budget=0, bound_bytes=self.config.bound_bytes
        )
        diff_sum = wrap_int64(sum(table.column("_diff").to_pylist()))
        return Part("", table.num_rows, len(data), diff_sum, inline=data, meta=meta.encode() if described else b"")

    def listed(self, children):
        """A hollow run of these parts."""
        blob_key = f"{self.collection}/{self.writer}/{self.name('h')}"
        data = encode_run(blob_key, tuple(children))
        self.blob.put(blob_key, data)
        return hollow(blob_key, children, len(data))

    def table(self, updates, id):
        """An update table of (row, time, diff), where a row is a tuple in the order of the schema's names."""
        return update_table(updates, self.schemas[id])

    def ordered(self, updates, id):
        """The same in order, each update once."""
        schema = self.schemas[id]
        return consolidate(update_table(updates, schema), (*schema.order_names, *schema.time_names))

    def run(self, updates, id=0, *, cuts=(), kinds=("stored",), nested=False, order=Order.SORTED):
        """A run of these updates, cut into parts."""
        table = self.ordered(updates, id)
        edges = [0, *sorted({min(cut, table.num_rows) for cut in cuts}), table.num_rows]
        pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges) if b > a]
        made = [getattr(self, kind)(piece, id) for piece, kind in zip(pieces, itertools.cycle(kinds), strict=False)]
        if nested and made:
            half = (len(made) + 1) // 2
            made = [self.listed(each) for each in (made[:half], made[half:]) if each]
            made = [self.listed(made)]
        return Run(tuple(made), order, id)


def update_table(updates, schema):
    """An update table of (row, time, diff), where a row is a tuple in the order of the schema's names."""
    columns = [[row[place] for row, _, _ in updates] for place in range(len(schema.names))]
    columns += [[time[place] for _, time, _ in updates] for place in range(schema.arity)]
    columns.append([diff for _, _, diff in updates])
    arrays = [array(column, each.type) for column, each in zip(columns, schema.update_arrow, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema.update_arrow)


def plain(table, names):
    """The values of some columns, row by row, as `update_table` takes them."""
    columns = []
    for name in names:
        column = table.column(name)
        # Python has no year 300000, Arrow has.
        columns.append((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def updates_of(table, schema):
    """The (row, time, diff) of an update table."""
    rows = plain(table, schema.names)
    times = plain(table, schema.time_names)
    return list(zip(rows, times, table.column("_diff").to_pylist(), strict=True))


# What is seen, naively.


def visible(updates, part):
    """The updates that are seen through a reference, at the times they are seen at."""
    for row, time, diff in updates:
        if part.lower is not None and not part.lower.less_equal(time):
            continue
        if part.upper is not None and part.upper.less_equal(time):
            continue
        yield row, time if part.rewrite is None else advance_by(time, part.rewrite), diff


def seen_as(row, written, wanted):
    """A row that was written under one schema, under another: by ids."""
    by_id = {each.id: (each, value) for each, value in zip(written.fields, row, strict=True)}
    return tuple(_seen_value(by_id.get(each.id), each) for each in wanted.fields)


def _seen_value(written, wanted):
    if written is None:
        scalar = wanted.default_scalar()
        return scalar.value if pa.types.is_timestamp(scalar.type) else scalar.as_py()
    source, value = written
    if value is not None and source.type != wanted.type and pa.types.is_floating(wanted.arrow_type):
        return float(value)
    return value


def in_window(time, window):
    """Whether an update at a time counts."""
    if window.until is not None and not _before(time, window.until):
        return False
    return window.after is None or not _before(time, window.after)


def _before(left, right):
    return all(a <= b for a, b in zip(left, right, strict=True))


def naive(history, wanted, where=None, keys=None):
    """What a scan should give: counts by row, or by row and time if those are kept.

    `history` is (updates, part, schema it was written with); `where` is a function of a row as a dictionary.
    """
    schema = wanted.schema
    names = [name for name in schema.names if name in wanted.read]
    counts = Counter()
    for updates, part, written in history:
        for row, time, diff in visible(updates, part):
            if not in_window(time, wanted.window):
                continue
            if wanted.window.since is not None:
                time = advance_by(time, wanted.window.since)
            seen = dict(zip(schema.names, seen_as(row, written, schema), strict=True))
            if where is not None and where(seen) is not True:
                continue
            if keys is not None and tuple(key(seen[name]) for name in schema.key_names) not in keys:
                continue
            if not within(seen, wanted):
                continue
            given = tuple(key(seen[name]) for name in names)
            counts[(given, time) if wanted.keep_times else given] += diff
    return Counter({row: count for row, count in counts.items() if count})


def within(seen, wanted):
    """Whether the columns of the cut of a row lie in the wanted range."""
    if wanted.lower is None and wanted.upper is None:
        return True
    names = wanted.cut_names
    table = pa.table({name: array([seen[name]], wanted.schema.types[name]) for name in names})
    encoded = encode_row(table, 0, names)
    return (wanted.lower is None or wanted.lower <= encoded) and (wanted.upper is None or encoded < wanted.upper)


def given(tables, wanted):
    """What a scan gave, in the same form; a row that comes twice is an error of its own."""
    counts = Counter()
    for table in tables:
        check(table.num_rows == 0 or set(table.column_names) == {*wanted.order, "_diff"})
        names = [name for name in wanted.schema.names if name in wanted.read]
        rows = [tuple(map(key, row)) for row in plain(table, names)]
        times = plain(table, wanted.schema.time_names) if wanted.keep_times else [None] * len(rows)
        for row, time, diff in zip(rows, times, table.column("_diff").to_pylist(), strict=True):
            place = (row, time) if wanted.keep_times else row
            if place in counts:
                raise AssertionError(f"{place} was given twice")
            if diff == 0:
                raise AssertionError(f"{place} was given with a count of 0")
            counts[place] = diff
    return counts


def order_keys(tables, names):
    """What Python orders as rows are, of all rows of some tables."""
    return [[tuple(map(key, row)) for row in plain(table, names)] for table in tables]


# Strategies.


@st.composite
def schemas(draw, max_changes=3, arity=None, keyless=None, kinds=FLAT, value_kinds=None):
    """One to four schemas, each made from the one before, and for each field id the values that rows draw from."""
    number = draw(st.integers(0, 2))
    is_keyless = draw(st.booleans()) if keyless is None else keyless
    key_kinds = [] if is_keyless else draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=2))
    most = list(value_kinds or TYPES)
    value_types = draw(st.lists(st.sampled_from(most), min_size=2 if is_keyless else number, max_size=3))
    key_columns = {f"k{place}": kind for place, kind in enumerate(key_kinds)}
    value_columns = {f"v{place}": kind for place, kind in enumerate(value_types)}
    flat = [name for name, kind in (key_columns | value_columns).items() if not is_nested(kind)]
    cluster = draw(st.lists(st.sampled_from(flat), max_size=1)) if flat else []
    coordinates = draw(st.integers(1, 2)) if arity is None else arity
    made = [define(key_columns, value_columns, cluster, coordinates)]
    pools = {each.id: draw(_pool(each.arrow_type)) for each in made[0].fields}
    for number in range(draw(st.integers(0, max_changes))):
        made.append(draw(_changed(made[-1], number, pools)))
    return made, pools


def _pool(kind):
    return st.lists(st.none() | TYPES[kind], min_size=1, max_size=4)


@st.composite
def _changed(draw, schema, number, pools):
    """A schema after one change, if one is possible."""
    what = draw(st.sampled_from(["add", "drop", "rename", "widen", "widen"]))
    fixed = {*schema.key, *schema.cluster}
    if what == "drop" and len(schema.fields) > 1:
        any_order = [each.name for each in schema.fields if each.id not in fixed]
        if any_order:
            return schema.drop(draw(st.sampled_from(any_order)))
    if what == "rename":
        return schema.rename(draw(st.sampled_from(schema.names)), f"r{number}")
    if what == "widen":
        pairs = [(each.name, new) for each in schema.fields for old, new in WIDER if each.arrow_type == old]
        if pairs:
            return schema.widen(*draw(st.sampled_from(pairs)))
    kind = draw(st.sampled_from([pa.int8(), pa.int64(), pa.string(), pa.float64(), pa.date32()]))
    default = draw(st.none() | TYPES[kind])
    pools[schema.next_id] = draw(_pool(kind))
    return schema.add(f"a{number}", type_name(parse_type(kind)), default)


@st.composite
def updates(draw, schema, pools, max_size=12, times=4):
    """Updates of rows from few values, so that rows meet each other."""

    def value(each):
        return value_of(draw(st.sampled_from(pools[each.id])), each.arrow_type)

    number = draw(st.integers(0, max_size))
    made = []
    for _ in range(number):
        time = tuple(draw(st.integers(0, times)) for _ in range(schema.arity))
        made.append((tuple(value(each) for each in schema.fields), time, draw(st.sampled_from([1, 1, 1, -1, 2]))))
    return made


@st.composite
def runs(draw, place, pools, arity, times=4):
    """A run of any kind, and what is in it: (updates, part as it is seen, schema) of every part."""
    id = draw(st.integers(0, len(place.schemas) - 1))
    schema = place.schemas[id]
    drawn = draw(updates(schema, pools))
    is_sorted = draw(st.booleans())
    if is_sorted:
        table = place.ordered(drawn, id)
    else:
        table = place.table([each for each in drawn if each[2]], id)
    cuts = draw(st.lists(st.integers(0, table.num_rows), max_size=3))
    edges = [0, *sorted(cuts), table.num_rows]
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges) if b > a]
    parts = []
    for piece in pieces:
        kind = draw(st.sampled_from(["stored", "stored", "inline", "bare"]))
        if not is_sorted and draw(st.booleans()):
            piece = consolidate(piece, (*schema.order_names, *schema.time_names))
        if piece.num_rows == 0:
            continue
        ascending = is_sorted or _is_ascending(piece, schema)
        if kind == "stored":
            parts.append((place.stored(piece, id, is_sorted=ascending), piece))
        else:
            parts.append((place.inline(piece, id, described=kind == "inline", is_sorted=ascending), piece))
    change = draw(_references(arity, times))
    made = [part for part, _ in parts]
    if made and draw(st.booleans()):
        # What is inside of a hollow run is whole; truncation and rewriting are those of the reference to it.
        outer = change(place.listed(made))
        made, seen = [outer], [apply_parent_bounds(outer, part) for part in made]
    else:
        made = seen = [change(part) for part in made]
    contents = [(updates_of(piece, schema), part, schema) for part, (_, piece) in zip(seen, parts, strict=True)]
    return Run(tuple(made), Order.SORTED if is_sorted else Order.UNORDERED, id), contents


def _is_ascending(table, schema):
    rows = order_keys([table], (*schema.order_names, *schema.time_names))[0]
    return rows == sorted(rows)


@st.composite
def _references(draw, arity, times):
    """How all parts of a run are seen: whole, truncated, rewritten."""
    bound = st.lists(st.tuples(*[st.integers(0, times + 1)] * arity), min_size=1, max_size=1 if arity == 1 else 2).map(
        lambda elements: Frontier(tuple(elements))
    )
    how = draw(st.sampled_from(["whole", "whole", "truncated", "rewritten", "both"]))
    lower = upper = rewrite = None
    if how in ("truncated", "both"):
        lower, upper = draw(st.none() | bound), draw(st.none() | bound)
    if how in ("rewritten", "both"):
        rewrite = draw(bound)
    return lambda part: msgspec.structs.replace(part, lower=lower, upper=upper, rewrite=rewrite)


@st.composite
def worlds(draw, max_runs=4, times=4, **options):
    """A place, runs in it, and all that is in them."""
    made, pools = draw(schemas(**options))
    place = Place(made)
    arity = made[0].arity
    drawn = [draw(runs(place, pools, arity, times)) for _ in range(draw(st.integers(0, max_runs)))]
    return place, [run for run, _ in drawn], [each for _, contents in drawn for each in contents], pools


# Questions.


def value_of(drawn, kind):
    """A value of a pool, which is that of the first type of its column, as a value of a wider one."""
    is_number = isinstance(drawn, int) and not isinstance(drawn, bool)
    return float(drawn) if is_number and pa.types.is_floating(kind) else drawn


_COMPARED = {"=": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}


@st.composite
def conditions(draw, schema, pools, depth=2):
    """A predicate, and the same as a function of a row: True, False, or None for unknown."""
    if depth and draw(st.integers(0, 3)) == 0:
        left, left_holds = draw(conditions(schema, pools, depth - 1))
        right, right_holds = draw(conditions(schema, pools, depth - 1))
        how = draw(st.sampled_from(["and", "or", "not"]))
        if how == "not":
            return ~left, lambda row: None if left_holds(row) is None else not left_holds(row)
        both = (left_holds, right_holds)
        if how == "and":
            return left & right, lambda row: _all(each(row) for each in both)
        return left | right, lambda row: _any(each(row) for each in both)
    field = draw(st.sampled_from(schema.fields))
    values = [value_of(each, field.arrow_type) for each in pools[field.id] if each is not None]
    column, name = col(field.name), field.name
    if not values or is_nested(field.arrow_type) or pa.types.is_timestamp(field.arrow_type) or draw(st.booleans()):
        return column.is_null(), lambda row: row[name] is None
    literal = draw(st.sampled_from(values))
    if draw(st.integers(0, 3)) == 0:
        some = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        return column.is_in(some), lambda row: None if row[name] is None else key(row[name]) in map(key, some)
    compared = _COMPARED[draw(st.sampled_from(sorted(_COMPARED)))]
    return (
        getattr(column, compared)(literal),
        lambda row: None if row[name] is None else getattr(key(row[name]), compared)(key(literal)),
    )


def _all(values):
    seen = list(values)
    return False if False in seen else None if None in seen else True


def _any(values):
    seen = list(values)
    return True if True in seen else None if None in seen else False


@st.composite
def key_sets(draw, schema, pools, max_size=3):
    """Keys to look up, as a set of them and as a table; some of them there, some not."""
    fields = [schema.by_id(each) for each in schema.key_ids]
    rows = draw(
        st.lists(
            st.tuples(*[st.sampled_from([value_of(v, each.arrow_type) for v in pools[each.id]]) for each in fields]),
            max_size=max_size,
        )
    )
    columns = [array([row[place] for row in rows], each.arrow_type) for place, each in enumerate(fields)]
    table = pa.Table.from_arrays(columns, schema=pa.schema([(each.name, each.arrow_type) for each in fields]))
    return {tuple(map(key, row)) for row in rows}, table


@st.composite
def bounds(draw, schema, pools):
    """A bound of some leading columns of the cut: the encoding of values, perhaps cut; or none."""
    if draw(st.booleans()):
        return None
    fields = [schema.by_id(id) for id in schema.cut_ids[: draw(st.integers(1, len(schema.cut_ids)))]]
    columns = {}
    for each in fields:
        value = draw(st.sampled_from([None, *pools[each.id]]))
        columns[each.name] = array([value_of(value, each.arrow_type)], each.arrow_type)
    encoded = encode_row(pa.table(columns), 0, list(columns))
    return encoded[: draw(st.sampled_from([100, 19, 9, 2]))]


@st.composite
def windows(draw, arity, times=5):
    """Times that count."""
    time = st.tuples(*[st.integers(0, times)] * arity)
    since = draw(st.none() | time.map(lambda each: Frontier((each,))))
    return Window(draw(st.none() | time), draw(st.none() | time), since)


@st.composite
def questions(draw, schema, pools, *, ranges=True, keys=True):
    """What a reader may ask for, and what the naive reader needs to know of it."""
    columns = draw(st.lists(st.sampled_from(schema.names), min_size=1, unique=True))
    if draw(st.booleans()):
        columns = schema.names
    where = holds = found = table = None
    if draw(st.booleans()):
        where, holds = draw(conditions(schema, pools))
    if keys and schema.key and draw(st.booleans()):
        found, table = draw(key_sets(schema, pools))
    lower = draw(bounds(schema, pools)) if ranges else None
    upper = draw(bounds(schema, pools)) if ranges else None
    wanted = ScanRequest(
        schema,
        tuple(columns),
        draw(windows(schema.arity)),
        keep_times=draw(st.booleans()),
        where=where,
        keys=None if table is None else KeySet(table),
        lower=lower,
        upper=upper,
    )
    return wanted, {"where": holds, "keys": found}
