"""The closed list of types: one text, one Arrow type, and a hint for everything else."""

from __future__ import annotations

import datetime
import decimal
import re
import typing

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timespine.columnar.schema.column_names import NAME_BYTES_MAX, check_column_name
from timespine.columnar.schema.schema import define
from timespine.columnar.schema.type_parser import NAMES, TYPE_DEPTH_MAX, TYPE_TEXT_MAX
from timespine.columnar.schema.types import (
    can_widen,
    holds_floats,
    is_nested,
    parse_schema,
    parse_type,
    stored_type,
    type_name,
)
from timespine.errors import UnsupportedType, UsageError

PLAIN = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "decimal(38,0)": pa.decimal128(38, 0),
    "decimal(1,1)": pa.decimal128(1, 1),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp[UTC]": pa.timestamp("us", "UTC"),
    "timestamp[America/Argentina/Buenos_Aires]": pa.timestamp("us", "America/Argentina/Buenos_Aires"),
    "timestamp[Etc/GMT+5]": pa.timestamp("us", "Etc/GMT+5"),
}

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).filter(
    lambda name: name != "*" and not (name.startswith("^") and name.endswith("$"))  # what Polars takes for patterns
)
plain_types = st.sampled_from(list(PLAIN.values()))
types = st.recursive(
    plain_types,
    lambda inside: (
        inside.map(pa.list_)
        | st.dictionaries(names, inside, min_size=1, max_size=3)
        .filter(lambda fields: len({name.lower() for name in fields}) == len(fields))
        .map(lambda fields: pa.struct(list(fields.items())))
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("text", PLAIN)
def test_every_plain_type_has_one_text(text):
    assert parse_type(text) == PLAIN[text]
    assert type_name(PLAIN[text]) == text


@given(types)
def test_the_text_of_a_type_gives_the_type_back(given_type):
    assert parse_type(type_name(given_type)) == given_type
    assert type_name(parse_type(type_name(given_type))) == type_name(given_type)
    assert parse_type(given_type).equals(given_type, check_metadata=True)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("bigint", "int64"),
        ("BIGINT", "int64"),
        ("long", "int64"),
        ("int", "int32"),
        ("integer", "int32"),
        ("smallint", "int16"),
        ("short", "int16"),
        ("tinyint", "int8"),
        ("byte", "int8"),
        ("boolean", "bool"),
        ("str", "string"),
        ("varchar", "string"),
        ("double", "float64"),
        ("float", "float32"),
        ("real", "float32"),
        ("decimal(9)", "decimal(9,0)"),
        ("numeric(9, 2)", "decimal(9,2)"),
        ("timestamp_ntz", "timestamp"),
        ("timestamp_ltz", "timestamp[UTC]"),
        ("bytes", "binary"),
        ("array<bigint>", "list<int64>"),
        ("list<double>", "list<float64>"),
        ("array<array<date>>", "list<list<date>>"),
        ("struct<a: int, `b c`: array<string>>", 'struct<a:int32,"b c":list<string>>'),
        ("struct<a int, b boolean NOT NULL>", "struct<a:int32,b:bool>"),
        ("datetime", "timestamp"),
        ("datetime.datetime", "timestamp"),
        ("datetime.date", "date"),
        ("decimal.Decimal", "decimal(38,18)"),
        ("bytearray", "binary"),
        ("list[int]", "list<int64>"),
        ("list[list[float]]", "list<list<float64>>"),
        ("list[datetime.date]", "list<date>"),
        ("list[int8]", "list<int8>"),
        ("list<list[int]>", "list<list<int64>>"),
        ("list[struct<a:int>]", "list<struct<a:int32>>"),
        (list[int], "list<int64>"),
        (list[list[datetime.datetime]], "list<list<timestamp>>"),
        (typing.List[str], "list<string>"),  # noqa: UP006
        (bytearray, "binary"),
        (int, "int64"),
        (float, "float64"),
        (str, "string"),
        (bool, "bool"),
        (bytes, "binary"),
        (datetime.date, "date"),
        (datetime.datetime, "timestamp"),
        (decimal.Decimal, "decimal(38,18)"),
    ],
)
def test_types_may_be_named_as_spark_sql_and_python_have_them(said, meant):
    assert type_name(parse_type(said)) == meant


ARROW = [
    pa.large_string(),
    pa.large_binary(),
    pa.date32(),
    pa.date64(),
    pa.decimal128(9, 2),
    pa.float32(),
    pa.float64(),
    pa.list_(pa.int64()),
    pa.large_list(pa.field("element", pa.struct([("a", pa.bool_()), pa.field("b", pa.int8(), nullable=False)]))),
]


@pytest.mark.parametrize("arrow", ARROW, ids=str)
def test_types_may_be_named_as_arrow_prints_them(arrow):
    assert parse_type(str(arrow)) == parse_type(arrow)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_one_of_a_type_in_any_case_and_inside_of_others(name):
    assert parse_type(name.upper()) == NAMES[name]
    assert parse_type(f"array<{name}>") == pa.list_(NAMES[name])


def test_a_schema_may_be_given_as_spark_sql_writes_it():
    text = "id bigint NOT NULL, `full name` string, at timestamp,\n local: timestamp_ntz, tags array<int>"
    fields = [
        ("id", pa.int64()),
        ("full name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.int32())),
    ]
    assert parse_schema(text) == pa.schema(fields)
    assert parse_schema("struct<id:bigint,name:string>") == pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize(
    "comment",
    ["'k'", "''", "'it''s'", r"'it\'s'", "'a, b bigint'", "'<'", '"of, it\'s"', "'two\nlines'", r"'\\'", "'DEFAULT 3'"],
)
def test_a_comment_of_a_column_is_skipped_as_spark_writes_it(comment):
    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("s", pa.struct([("a", pa.int32())]))])
    for text in (
        f"id bigint COMMENT {comment}, name string not null comment{comment}, s struct<a: int COMMENT {comment}>",
        f"id BIGINT COMMENT {comment} NOT NULL,name STRING,s STRUCT<a: INT> NOT NULL COMMENT {comment}",
        f"struct<id:bigint COMMENT {comment},name:string,s:struct<a:int COMMENT {comment}> COMMENT {comment}>",
    ):
        assert parse_schema(text) == columns


@pytest.mark.parametrize("wrong", ["'k", "k", "", "'k''", "'k' 'l'", r"'k\'"])
def test_a_comment_that_does_not_end_is_refused_with_the_column(wrong):
    with pytest.raises(
        UnsupportedType, match=f"^column 'id': {re.escape(repr(f'bigint COMMENT {wrong}'.strip()))} is not"
    ):
        parse_schema(f"name string, id bigint COMMENT {wrong}")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("name string, id bigint DEFAULT 3", "DEFAULT"),
        ("name string, id decimal(9,2)default 3, x int", "DEFAULT"),
        ("id bigint NOT NULL DEFAULT 3 COMMENT 'k'", "DEFAULT"),
        ("name string, id bigint COMMENT 'k' GENERATED ALWAYS AS IDENTITY, x int", "GENERATED"),
        ("struct<name:string,id:struct<a:int DEFAULT 3>>", "DEFAULT"),
    ],
)
def test_a_column_that_spark_would_compute_is_refused_in_one_sentence(text, word):
    with pytest.raises(UnsupportedType) as refused:
        parse_schema(text)
    assert str(refused.value) == f"column 'id': {word} is not part of a schema: leave it out, and give rows the values"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id bigint, x varchar(10)", r"^column 'x': 'varchar\(10\)' is not a type of a column: use string"),
        ("x varchar(10) COMMENT 'a, b', id bigint", r"^column 'x': \"varchar\(10\) COMMENT 'a, b'\" is not a type"),
        ("id bigint, `a b` foo, c int", "^column 'a b': 'foo' is not a type of a column: these work"),
        ("id bigint name string, c int", "^column 'id': 'bigint name string' is not a type of a column: use bigint"),
        ("id, name string", "^column 'id': there is no type after the name: these work"),
        ("id bigint, x", "^column 'x': there is no type after the name: these work"),
        ("id bigint, x array<int, y int", "^column 'x': 'array<int, y int' is not a type of a column: use array<T>"),
        ("id bigint, x map<string,int>, y int", "^column 'x': 'map' is not a type of a column: use list<struct<"),
        ("id bigint, x decimal, y int", r"^column 'x': 'decimal' is not a type of a column: use decimal\(p,s\)"),
        ("id bigint, x decimal(39,2), y int", r"^column 'x': decimal\(39,2\) cannot be stored"),
        ("id bigint, x timestamp[UTC, y int", r"^column 'x': 'timestamp\[UTC, y int' is not a type"),
        ("id bigint, x timestamp[Mars/Olympus], y int", "^column 'x': 'Mars/Olympus' is not a known time zone"),
        ("id bigint, x struct<a:int8,A:int8>", "^column 'x': two fields of a struct differ"),
        ("struct<id:bigint,x:varchar(10)>", r"^column 'x': 'varchar\(10\)' is not a type of a column: use string"),
        ("struct<id:bigint,x:array<foo>>", "^column 'x': 'foo' is not a type"),
        ("id bigint, 3x int", "^'3x int' is not a type"),
        ("struct<id:bigint", "^'struct<id:bigint' is not a type"),
    ],
)
def test_a_schema_that_is_refused_names_the_wrong_column(text, said):
    with pytest.raises(UnsupportedType, match=said):
        parse_schema(text)


@pytest.mark.parametrize("wrong", ["", "id", "id bigint name string", "id bigint,", "id nothing", "id bigint)"])
def test_a_text_that_is_not_a_schema_is_refused_with_what_works(wrong):
    with pytest.raises(UsageError, match=r"these work: bool, int8"):
        parse_schema(wrong)


def test_spaces_do_not_matter():
    assert type_name(parse_type(' struct< a : decimal( 10 , 2 ), "b c" : list< int8 > > ')) == (
        'struct<a:decimal(10,2),"b c":list<int8>>'
    )


def test_names_inside_of_structs_are_quoted_when_they_must_be():
    odd = pa.struct([('he said ":,<>"', pa.int8()), ("größe", pa.int8()), ("1", pa.int8()), (" ", pa.int8())])
    assert type_name(odd) == 'struct<"he said "":,<>""":int8,"größe":int8,"1":int8," ":int8>'
    assert parse_type(type_name(odd)) == odd


@pytest.mark.parametrize(
    ("arrow", "text"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.dictionary(pa.int32(), pa.int16()), "int16"),
        (pa.large_binary(), "binary"),
        (pa.binary_view(), "binary"),
        (pa.binary(16), "binary"),
        (pa.date64(), "date"),
        (pa.timestamp("s"), "timestamp"),
        (pa.timestamp("ns", ""), "timestamp"),
        (pa.timestamp("ms", "Europe/Berlin"), "timestamp[Europe/Berlin]"),
        (pa.timestamp("ns", "+00:00"), "timestamp[UTC]"),
        (pa.decimal32(9, 2), "decimal(9,2)"),
        (pa.decimal64(18, 2), "decimal(18,2)"),
        (pa.decimal256(38, 2), "decimal(38,2)"),
        (pa.large_list(pa.int8()), "list<int8>"),
        (pa.list_(pa.large_string(), 3), "list<string>"),
        (pa.list_view(pa.date64()), "list<date>"),
        (pa.large_list_view(pa.int8()), "list<int8>"),
        (pa.struct([pa.field("a", pa.string_view(), nullable=False, metadata={"x": "y"})]), "struct<a:string>"),
    ],
)
def test_arrow_types_with_the_same_values_are_one_type(arrow, text):
    assert type_name(parse_type(arrow)) == text
    assert type_name(arrow) == text


def test_what_lies_inside_is_nullable_has_no_metadata_and_one_name():
    odd = pa.list_(pa.field("element", pa.struct([pa.field("a", pa.int8(), nullable=False)]), nullable=False))
    assert parse_type(odd).equals(pa.list_(pa.struct([("a", pa.int8())])), check_metadata=True)


@pytest.mark.parametrize(
    ("wrong", "instead"),
    [
        ("int65", "use int64"),
        ("varchar(3)", "these work"),
        ("char(3)", "use string"),
        ("decimal", r"decimal\(18,2\)"),
        ("decimal(39,2)", "1 to 38 digits"),
        ("decimal(2,3)", "1 to 38 digits"),
        ("decimal(0,0)", "1 to 38 digits"),
        ("time", "int64"),
        ("list<int65>", "use int64"),
        ("list", "list<int64>"),
        ("map<string,int64>", "list<struct<key:K,value:V>>"),
        ("timestamp[+02:00]", "UTC"),
        ("timestamp[Mars/Olympus]", "not a known time zone"),
        ("list<timestamp[Mars/Olympus]>", "not a known time zone"),
        ("struct<t:timestamp[posix/Europe/Berlin]>", "not a known time zone"),
        ("timestamp[UTC", "use timestamp"),
        ("struct<>", "struct<a:T,b:T>"),
        ("struct<a:int8,A:int8>", "upper and lower case"),
        ('struct<"":int8>', "not empty"),
        ('struct<"\x00":int8>', "control"),
        ('struct<"\ud800":int8>', "Unicode"),
        ("list<int8", "list<T>"),
        ("int8>", "use int8"),
        ("int8 int8", "use int8"),
        ("", "these work: bool"),
        ("<", "these work: bool"),
        (pa.null(), "give it a type"),
        (pa.list_(pa.null()), "give it a type"),
        (pa.float16(), "use float32"),
        (pa.time64("us"), "use int64"),
        (pa.duration("s"), "use int64"),
        (pa.month_day_nano_interval(), "use int64"),
        (pa.map_(pa.string(), pa.int8()), "list<struct<key:K,value:V>>"),
        (pa.decimal256(76, 2), "1 to 38 digits"),
        (pa.decimal128(5, -2), "1 to 38 digits"),
        (pa.struct([]), "without fields"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "upper and lower case"),
        (pa.uuid(), "storage type"),
        (pa.dense_union([pa.field("a", pa.int8())]), "these work: bool"),
        (pa.run_end_encoded(pa.int32(), pa.int8()), "the type of its values"),
        ("datetime.time", r"use int64 \(microseconds of the day\)"),
        ("datetime.timedelta", r"use int64 \(microseconds\)"),
        ("datetime64[ns]", "use timestamp or"),
        ("datetime[ms]", "use datetime;"),
        ("numpy.int64", "use int64;"),
        ("timestamp_tz", r"use timestamp\[UTC\]"),
        ("variant", "use string;"),
        ("dictionary<values=string, indices=int8, ordered=0>", "use the type of its values"),
        ("category", "use the type of its values"),
        ("fixed_size_binary[16]", "use binary;"),
        ("ubigint", "use uint64;"),
        ("int128", r"use decimal\(38,0\)"),
        ("strng", "use string;"),
        ("bool_", "use bool;"),
        ("tuple", "struct<a:T,b:T> or list<T>"),
        ("list[int65]", "use int64;"),
        ("list[int", "use list<T>"),
        (dict[str, int], "give a name, one of bool"),
        (list[object], "give a name, one of bool"),
        (3, "give a name, one of bool"),
        (None, "give a name, one of bool"),
        (list, "give a name, one of bool"),
    ],
)
def test_anything_else_is_refused_with_what_to_use_instead(wrong, instead):
    with pytest.raises(UsageError, match=instead):
        parse_type(wrong)


@pytest.mark.parametrize("name", ["object", "null", "nonetype", "any", "complex", "geometry", "ubyt3", "bytes_io"])
def test_a_name_without_a_sure_replacement_gets_none(name):
    with pytest.raises(UnsupportedType, match="is not a type of a column: these work"):
        parse_type(name)


@given(
    st.text(max_size=30)
    | st.lists(st.sampled_from(["list", "<", ">", "struct", "a", ":", ",", "int8", '"']), max_size=9).map("".join)
)
def test_any_text_is_a_type_or_refused(text):
    try:
        parsed = parse_type(text)
    except UsageError:
        return
    assert parse_type(type_name(parsed)) == parsed


def test_types_have_a_bound_on_depth_and_length():
    deep = "list<" * (TYPE_DEPTH_MAX - 1) + "int8" + ">" * (TYPE_DEPTH_MAX - 1)
    assert type_name(parse_type(deep)) == deep
    with pytest.raises(UsageError, match="inside of each other"):
        parse_type(f"list<{deep}>")
    with pytest.raises(UsageError, match="inside of each other"):
        parse_type(pa.list_(parse_type(deep)))
    with pytest.raises(UsageError, match="over the limit"):
        parse_type(" " * TYPE_TEXT_MAX + "int8")


def test_a_stored_zone_is_not_looked_up():
    assert stored_type("timestamp[Mars/Olympus]") == pa.timestamp("us", "Mars/Olympus")
    assert type_name(stored_type("timestamp[Mars/Olympus]")) == "timestamp[Mars/Olympus]"


@pytest.mark.parametrize("name", ["a", " ", "größe", "a.b", "名前", "_x", "x" * NAME_BYTES_MAX, "'\"`"])
def test_names_may_be_any_text(name):
    assert check_column_name(name, "column") == name


@pytest.mark.parametrize("name", ["", "a\nb", "\x7f", "\ud800", "ü" * 128, 3, None, b"a"])
def test_some_names_are_refused(name):
    with pytest.raises(UsageError, match="cannot be the name of a column"):
        check_column_name(name, "column")


def test_what_holds_floats_and_what_is_nested():
    assert holds_floats(parse_type("list<struct<a:int8,b:list<float32>>>"))
    assert not holds_floats(parse_type("list<struct<a:int8,b:decimal(3,1)>>"))
    assert is_nested(pa.list_(pa.int8()))
    assert is_nested(pa.struct([("a", pa.int8())]))
    assert not is_nested(pa.string())


WIDER = {
    "int8": {"int16", "int32", "int64", "float64"},
    "int16": {"int32", "int64", "float64"},
    "int32": {"int64", "float64"},
    "int64": set(),
    "uint8": {"int16", "int32", "int64", "uint16", "uint32", "uint64", "float64"},
    "uint16": {"int32", "int64", "uint32", "uint64", "float64"},
    "uint32": {"int64", "uint64", "float64"},
    "uint64": set(),
    "float32": {"float64"},
    "decimal(1,1)": set(),
    "decimal(38,0)": set(),
}


@pytest.mark.parametrize("old", PLAIN)
def test_a_type_widens_to_exactly_those_that_hold_all_its_values(old):
    wider = {new for new in PLAIN if can_widen(PLAIN[old], PLAIN[new])}
    assert wider == WIDER.get(old, set()) | {old}


def test_decimals_widen_by_whole_digits_only():
    assert can_widen(pa.decimal128(5, 2), pa.decimal128(7, 2))
    assert not can_widen(pa.decimal128(5, 2), pa.decimal128(4, 2))
    assert not can_widen(pa.decimal128(5, 2), pa.decimal128(7, 3))


@given(types, types)
def test_nested_types_widen_to_themselves_only(old, new):
    assert can_widen(old, old)
    if is_nested(old) and can_widen(old, new):
        assert old == new


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_timestamp_may_be_named_as_arrow_prints_it(unit: str) -> None:
    assert parse_type(str(pa.timestamp(unit))) == pa.timestamp("us")
    assert parse_type(str(pa.timestamp(unit, "Europe/Berlin"))) == pa.timestamp("us", "Europe/Berlin")


@pytest.mark.parametrize("name", ["*", "^$", "^a.*$"])
def test_a_name_that_polars_takes_for_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="pattern"):
        check_column_name(name, "column")


def test_a_column_of_an_unsupported_type_is_that_error_and_says_which_column():
    with pytest.raises(UnsupportedType, match=r"^column 'tags': 'object' is not a type of a column"):
        define({"id": int}, {"tags": "object"})
    assert define({"id": int}, {"tags": list[int]}).types["tags"] == pa.list_(pa.int64())
