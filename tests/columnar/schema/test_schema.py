"""Schemas: always valid, small in storage, and changed without touching what was written."""

from __future__ import annotations

import decimal
import math

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timespine.columnar.schema.schema import (
    COLUMNS_MAX,
    SYSTEM_IDS,
    Field,
    Schema,
    define,
    infer,
    is_reserved,
    time_names,
)
from timespine.core.transitions.lifecycle import SCHEMA_BYTES_MAX
from timespine.errors import CorruptionError, UsageError

D = decimal.Decimal

ORDERS = define({"id": "int64"}, {"customer": "string", "total": "double", "tags": "list<string>"})


def test_a_schema_has_key_columns_then_value_columns():
    assert ORDERS.names == ("id", "customer", "total", "tags")
    assert ORDERS.key == (1,)
    assert ORDERS.key_names == ("id",)
    assert ORDERS.value_names == ("customer", "total", "tags")
    assert ORDERS.order_names == ("id", "customer", "total", "tags")
    assert ORDERS.time_names == ("_time",)
    assert ORDERS.system_names == ("_time", "_diff")
    assert ORDERS.next_id == 5
    assert [field.type for field in ORDERS.fields] == ["int64", "string", "float64", "list<string>"]


def test_without_a_key_all_columns_are_the_key():
    schema = define(None, {"a": "int64", "b": "list<double>"})
    assert schema.key == ()
    assert schema.key_ids == (1, 2)
    assert schema.key_names == ("a", "b")
    assert schema.value_names == ()
    assert schema.add("c", "string").key_names == ("a", "b", "c")


def test_a_key_may_be_all_there_is():
    assert define({"a": "int64"}, None).value_names == ()


def test_rows_are_ordered_by_cluster_then_key_then_the_others():
    schema = define({"k1": "int64", "k2": "string"}, {"v1": "date", "v2": "bool"}, cluster=["v2", "k2"])
    assert schema.cluster_names == ("v2", "k2")
    assert schema.order_names == ("v2", "k2", "k1", "v1")
    assert schema.order_ids == (4, 2, 1, 3)
    renamed = schema.rename("v2", "w").rename("k2", "k")
    assert renamed.order_names == ("w", "k", "k1", "v1")
    assert renamed.order_ids == schema.order_ids


def test_times_have_one_column_per_coordinate():
    assert time_names(1) == ("_time",)
    assert time_names(3) == ("_time_0", "_time_1", "_time_2")
    for wrong in (0, 9, True, "1", None):
        with pytest.raises(UsageError, match="number of coordinates"):
            define(None, {"a": "int64"}, arity=wrong)


def test_arrow_has_the_users_columns_and_updates_have_ids():
    assert ORDERS.arrow == pa.schema(
        [("id", pa.int64()), ("customer", pa.string()), ("total", pa.float64()), ("tags", pa.list_(pa.string()))]
    )
    updates = define({"id": "int64"}, {"v": "string"}, arity=2).update_arrow
    assert updates.names == ["id", "v", "_time_0", "_time_1", "_diff"]
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in updates]
    assert ids == [1, 2, SYSTEM_IDS + 1, SYSTEM_IDS + 2, SYSTEM_IDS]
    assert [field.nullable for field in updates] == [True, True, False, False, False]
    assert [field.type for field in updates][2:] == [pa.int64()] * 3


def test_what_follows_from_a_schema_is_computed_once_and_not_carried_over():
    assert ORDERS.update_arrow is ORDERS.update_arrow
    assert ORDERS.add("x", "int8").names == (*ORDERS.names, "x")
    assert msgspec.structs.replace(ORDERS) == ORDERS
    assert hash(ORDERS) == hash(msgspec.structs.replace(ORDERS))


def test_columns_are_found_by_name_and_by_id():
    assert ORDERS.field("total").id == 3
    assert ORDERS.by_id(3).name == "total"
    assert ORDERS.has_id(3)
    assert not ORDERS.has_id(9)
    with pytest.raises(UsageError, match="no column 'Total'; there are 'id'"):
        ORDERS.field("Total")
    with pytest.raises(UsageError, match="no column of id 9"):
        ORDERS.by_id(9)


@pytest.mark.parametrize(
    ("key", "value", "cluster", "why"),
    [
        ({}, {}, (), "0 columns"),
        (None, None, (), "0 columns"),
        ({"a": "int64"}, {"a": "int64"}, (), "have one name"),
        ({"a": "int64"}, {"A": "int64"}, (), "have one name"),
        ({"a": "int65"}, None, (), "column 'a': 'int65'"),
        ({"": "int64"}, None, (), "cannot be the name"),
        ({3: "int64"}, None, (), "cannot be the name"),
        ({"a\n": "int64"}, None, (), "control"),
        ({"_diff": "int64"}, None, (), "reserved"),
        (None, {"_DIFF": "int64"}, (), "reserved"),
        (None, {"_time": "int64"}, (), "reserved"),
        (None, {"_time_12": "int64"}, (), "reserved"),
        (None, {"_Change_Type": "int64"}, (), "reserved"),
        (None, {"_commit_version": "int64"}, (), "reserved"),
        (None, {"_commit_timestamp": "int64"}, (), "reserved"),
        ({"a": "list<int64>"}, None, (), "nested and cannot be in the key"),
        ({"a": "int64"}, {"b": "struct<x:int8>"}, ["b"], "nested and cannot be in the cluster"),
        ({"a": "int64"}, None, ["b"], "the cluster names 'b'"),
        ({"a": "int64"}, None, ["a", "a"], "twice"),
        ({"a": "int64"}, None, "a", "must be a list of names"),
        ({"a": "int64"}, None, [1], "the cluster names 1"),
        (["a"], None, (), "must map names to types"),
        ("a", None, (), "must map names to types"),
        (None, {f"c{i}": "int8" for i in range(COLUMNS_MAX + 1)}, (), "it must have 1 to"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(key, value, cluster, why):
    with pytest.raises(UsageError, match=why):
        define(key, value, cluster)


def test_names_close_to_reserved_ones_are_fine():
    names = ["time", "diff", "_times", "_time_", "_time_x", "__diff", "time_0"]
    assert not any(is_reserved(name) for name in names)
    assert define(None, dict.fromkeys(names, "int8")).names == tuple(names)


def test_a_schema_is_inferred_from_arrow_data():
    table = pa.schema(
        [
            pa.field("v", pa.dictionary(pa.int8(), pa.large_string()), nullable=False),
            ("_time", pa.int64()),
            ("k", pa.int32()),
            ("_diff", pa.int64()),
        ]
    )
    schema = infer(table, key=["k"])
    assert schema.names == ("v", "k")
    assert schema.key_names == ("k",)
    assert [field.type for field in schema.fields] == ["string", "int32"]
    assert infer(table).key == ()
    with pytest.raises(UsageError, match="reserved"):
        infer(table, arity=2)
    with pytest.raises(UsageError, match="the key names 'x'"):
        infer(table, key=["x"])
    with pytest.raises(UsageError, match="column 'd': 'duration"):
        infer(pa.schema([("d", pa.duration("s"))]))
    with pytest.raises(UsageError, match="have one name"):
        infer(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    with pytest.raises(UsageError, match=r"table\.schema"):
        infer(pa.table({"a": [1]}))


def test_a_column_that_is_dropped_and_added_again_is_another_one():
    again = ORDERS.drop("customer").add("customer", "string")
    assert again.names == ("id", "total", "tags", "customer")
    assert again.field("customer").id == 5
    assert again.next_id == 6
    assert not again.has_id(2)


def test_ids_come_to_an_end():
    last = msgspec.structs.replace(ORDERS, next_id=SYSTEM_IDS - 1).add("x", "int8")
    assert last.field("x").id == SYSTEM_IDS - 1
    with pytest.raises(UsageError, match="used up"):
        last.add("y", "int8")


def test_columns_are_dropped_unless_rows_are_sorted_by_them():
    schema = define({"k": "int64"}, {"c": "int64", "v": "int64"}, cluster=["c"])
    assert schema.drop("v").names == ("k", "c")
    with pytest.raises(UsageError, match="in the key"):
        schema.drop("k")
    with pytest.raises(UsageError, match="in the cluster"):
        schema.drop("c")
    with pytest.raises(UsageError, match="no column 'x'"):
        schema.drop("x")
    with pytest.raises(UsageError, match="the only one"):
        define(None, {"a": "int8"}).drop("a")


def test_a_renamed_column_stays_the_same_one():
    renamed = ORDERS.rename("id", "ID").rename("total", "sum")
    assert renamed.names == ("ID", "customer", "sum", "tags")
    assert renamed.key == ORDERS.key
    assert [field.id for field in renamed.fields] == [1, 2, 3, 4]
    assert ORDERS.rename("id", "id") == ORDERS
    for new, why in (("TAGS", "one name"), ("_diff", "reserved"), ("", "cannot be the name")):
        with pytest.raises(UsageError, match=why):
            ORDERS.rename("total", new)


def test_a_column_is_widened_with_its_default():
    schema = define({"k": "int8"}, None).add("n", "int32", 7).add("d", "decimal(4,2)", D("1.5")).add("f", "float", 0.1)
    wide = schema.widen("k", "int64").widen("n", "double").widen("d", "decimal(10,2)").widen("f", "float64")
    assert [field.type for field in wide.fields] == ["int64", "float64", "decimal(10,2)", "float64"]
    assert wide.field("n").default_scalar() == pa.scalar(7.0)
    assert wide.field("d").default_scalar() == pa.scalar(D("1.50"), pa.decimal128(10, 2))
    assert wide.field("f").default_scalar().as_py() == schema.field("f").default_scalar().as_py()
    assert schema.widen("n", "int32") == schema
    for name, wrong in (("n", "int16"), ("n", "string"), ("d", "decimal(10,3)"), ("f", "int64")):
        with pytest.raises(UsageError, match="cannot go from"):
            schema.widen(name, wrong)


def test_a_schema_is_small_in_storage():
    assert len(ORDERS.encode()) < 120


def test_decoding_the_same_bytes_gives_the_same_object():
    data = ORDERS.encode()
    assert Schema.decode(data) == ORDERS
    assert Schema.decode(data) is Schema.decode(bytes(bytearray(data)))


def test_a_schema_that_does_not_fit_the_state_is_refused():
    big = define(None, {"a": "int8"}).add("x", "string", "x" * SCHEMA_BYTES_MAX)
    with pytest.raises(UsageError, match="over the limit"):
        big.encode()
    with pytest.raises(CorruptionError, match="more than"):
        Schema.decode(b"\x00" * (SCHEMA_BYTES_MAX + 1))
    with pytest.raises(UsageError, match="not bytes"):
        Schema.decode("x")


def stored(**changes):
    """The bytes of a schema of two columns, changed as no schema could be."""
    plain = {
        "fields": [[1, "k", "int64", None], [2, "v", "string", None]],
        "key": [1],
        "cluster": [],
        "arity": 1,
        "next_id": 3,
    }
    return msgspec.msgpack.encode({**plain, **changes})


def test_the_stored_form_is_what_the_format_says():
    assert Schema.decode(stored()) == define({"k": "int64"}, {"v": "string"})
    assert msgspec.msgpack.decode(define({"k": "int64"}, {"v": "string"}).encode()) == msgspec.msgpack.decode(stored())


@pytest.mark.parametrize(
    "changes",
    [
        {"fields": []},
        {"fields": [[0, "k", "int64", None]]},
        {"fields": [[True, "k", "int64", None]]},
        {"fields": [[SYSTEM_IDS, "k", "int64", None]], "key": [], "next_id": SYSTEM_IDS},
        {"fields": [[1, "k", "int64", None], [1, "v", "string", None]]},
        {"fields": [[1, "k", "int64", None], [2, "K", "string", None]]},
        {"fields": [[1, "_diff", "int64", None]]},
        {"fields": [[1, "k", "double", None]]},
        {"fields": [[1, "k", "int64 ", None]]},
        {"fields": [[1, "k", "struct<a:int8>", None]]},
        {"fields": [[1, "k", "nonsense", None]]},
        {"fields": [[1, "k", "int64", 1.0]]},
        {"fields": [[1, "k", "int64", True]]},
        {"fields": [[1, "k", "int64", 2**63]]},
        {"fields": [[1, "k", "float64", 1]]},
        {"fields": [[1, "k", "float64", math.nan]]},
        {"fields": [[1, "k", "float64", -0.0]]},
        {"fields": [[1, "k", "float64", "NaN"]]},
        {"fields": [[1, "k", "float32", 0.1]]},
        {"fields": [[1, "k", "binary", "0"]]},
        {"fields": [[1, "k", "binary", "AA"]]},
        {"fields": [[1, "k", "binary", b"aa"]]},
        {"fields": [[1, "k", "decimal(4,2)", "1.5"]]},
        {"fields": [[1, "k", "decimal(4,2)", "-0.00"]]},
        {"fields": [[1, "k", "decimal(4,2)", "01.50"]]},
        {"fields": [[1, "k", "decimal(4,2)", "\u0661.\u0665\u0660"]]},
        {"fields": [[1, "k", "decimal(4,2)", "x"]]},
        {"fields": [[1, "k", "date", 2**31]]},
        {"fields": [[1, "k", "timestamp", "2020"]]},
        {"fields": [[1, "k", "int64", [1]]]},
        {"fields": [[1, "k", "int64", None, None]]},
        {"fields": [[1, "k"]]},
        {"key": [3]},
        {"key": [1, 1]},
        {"key": "k"},
        {"cluster": [7]},
        {"cluster": [2, 2]},
        {"arity": 0},
        {"arity": 9},
        {"arity": True},
        {"next_id": 2},
        {"next_id": SYSTEM_IDS + 1},
        {"later": 1},
    ],
)
def test_stored_bytes_that_are_no_schema_are_corruption(changes):
    with pytest.raises(CorruptionError):
        Schema.decode(stored(**changes))


@settings(max_examples=300)
@given(st.data())
def test_flipped_and_cut_bytes_give_a_valid_schema_or_corruption(data):
    whole = bytearray(ORDERS.add("x", "decimal(4,2)", D("1.5")).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))]) if data.draw(st.booleans()) else bytes(whole)
    try:
        decoded = Schema.decode(cut)
    except CorruptionError:
        return
    assert Schema.decode(decoded.encode()) == decoded
    assert decoded.update_arrow.names[-1] == "_diff"


@given(st.binary(max_size=80))
def test_random_bytes_are_corruption(data):
    with pytest.raises(CorruptionError):
        Schema.decode(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Field("1", "a", "int8"),
        lambda: Field(1, "a", 3),
        lambda: Field(1, "a", "int8", object()),
        lambda: Schema([ORDERS.fields[0]], (), (), 1, 9),
        lambda: Schema((3,), (), (), 1, 9),
        lambda: Schema(ORDERS.fields, [1], (), 1, 9),
        lambda: Schema(ORDERS.fields, ("1",), (), 1, 9),
        lambda: Schema(ORDERS.fields, (), (), 1, "9"),
        lambda: Schema(ORDERS.fields, (), (), 1, 4),
        lambda: Schema(ORDERS.fields, (), (), 1, SYSTEM_IDS + 1),
        lambda: Schema(ORDERS.fields, (), (), "1", 9),
    ],
)
def test_there_is_no_other_way_to_an_invalid_schema(make):
    with pytest.raises(UsageError):
        make()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["add", "drop", "rename", "widen"]), st.integers(0, 5), st.integers(0, 5))))
def test_whatever_is_done_to_a_schema_ids_stay_with_their_columns(steps):
    schema, seen = ORDERS, {field.id: field.type for field in ORDERS.fields}
    for what, a, b in steps:
        try:
            changed = {
                "add": lambda a=a, s=schema: s.add(f"c{a}", "int8"),
                "drop": lambda a=a, s=schema: s.drop(f"c{a}"),
                "rename": lambda a=a, b=b, s=schema: s.rename(f"c{a}", f"C{b}".lower()),
                "widen": lambda a=a, s=schema: s.widen(f"c{a}", "int64"),
            }[what]()
        except UsageError:
            continue
        for field in changed.fields:
            assert field.id < changed.next_id
            assert seen.setdefault(field.id, field.type) in (field.type, "int8")
        assert changed.next_id >= schema.next_id
        assert Schema.decode(changed.encode()) == changed
        schema = changed
