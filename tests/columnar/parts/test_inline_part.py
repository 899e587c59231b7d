"""Inline data: small, exact, and never trusted."""

import dataclasses
import random
import struct

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_part import SCHEMA, check_same, rows
from test_part_stats import updates

from timespine.columnar.parts.inline_msgpack import BYTES_MAX, VALUES_MAX
from timespine.columnar.parts.inline_part import MESSAGE_BYTES_MAX, decode_inline, decode_together, encode_inline
from timespine.columnar.schema.schema import define
from timespine.config import DEFAULT
from timespine.errors import CorruptionError

PLAIN, ZSTD, COLUMNS = b"\x00", b"\x01", b"\x02"


def plain(table):
    """Rows as a record batch, as it is."""
    return PLAIN + table.combine_chunks().to_batches()[0].serialize().to_pybytes()


def compressed(table):
    """Rows as a compressed record batch."""
    message = plain(table)[1:]
    return ZSTD + struct.pack("<I", len(message)) + pa.compress(message, "zstd", asbytes=True)


@settings(max_examples=80)
@given(updates(), st.integers(0, 3))
def test_what_is_written_is_read_back(drawn, skipped):
    schema, table = drawn
    table = table.slice(skipped)
    check_same(decode_inline(encode_inline(table), schema, table.num_rows, DEFAULT), table)


def test_a_table_of_many_chunks_is_one_batch():
    table = pa.concat_tables([rows(9).slice(place, 2) for place in range(0, 9, 2)])
    check_same(decode_inline(encode_inline(table), SCHEMA, 9, DEFAULT), table)
    assert encode_inline(table) == encode_inline(table.combine_chunks())


def test_it_is_small():
    assert len(encode_inline(rows(1))) < 250
    assert len(encode_inline(rows(100))) < 2000
    noise = pa.array(random.Random(1).randbytes(3000)[place : place + 30] for place in range(0, 3000, 30))
    schema = define({"b": "binary"}, None)
    table = pa.Table.from_arrays([noise, pa.array([0] * 100), pa.array([1] * 100)], schema=schema.update_arrow)
    assert len(encode_inline(table)) < 4000


def test_what_does_not_get_smaller_is_not_compressed():
    schema = define({"b": "binary"}, None)

    def one(value):
        return pa.Table.from_arrays([pa.array([value]), pa.array([0]), pa.array([1])], schema=schema.update_arrow)

    assert encode_inline(rows(VALUES_MAX))[:1] == ZSTD
    # A message over the limit stays as it is, so that no few bytes can claim to be many.
    large = one(bytes(2 * MESSAGE_BYTES_MAX))
    assert encode_inline(large)[:1] == PLAIN
    check_same(decode_inline(encode_inline(large), schema, 1, DEFAULT), large)
    whole = random.Random(1).randbytes(MESSAGE_BYTES_MAX // 2)
    assert len(encode_inline(one(whole))) < len(whole) + 600
    with pytest.raises(CorruptionError, match="more than"):
        decode_inline(encode_inline(large), schema, 1, dataclasses.replace(DEFAULT, object_bytes_max=1000))


def test_no_rows_are_fine():
    check_same(decode_inline(encode_inline(rows(0)), SCHEMA, 0, DEFAULT), rows(0))


def test_every_flipped_byte_is_refused_or_changes_values_alone():
    """The checksum of the state is what finds damage. Here nothing may crash, hang, or have another shape."""
    table = rows(5)
    decoded = 0
    for data in (plain(table), compressed(table), encode_inline(table)):
        check_same(decode_inline(data, SCHEMA, 5, DEFAULT), table)
        for place in range(len(data)):
            for flip in (1, 0x80, 0xFF):
                broken = data[:place] + bytes((data[place] ^ flip,)) + data[place + 1 :]
                try:
                    found = decode_inline(broken, SCHEMA, 5, DEFAULT)
                except CorruptionError:
                    continue
                decoded += 1
                assert found.num_rows == 5
                assert found.schema == SCHEMA.update_arrow
                found.validate(full=True)
    assert decoded


def test_every_truncation_is_refused():
    for data in (encode_inline(rows(5)), plain(rows(5)), compressed(rows(5))):
        for size in range(len(data)):
            with pytest.raises(CorruptionError):
                decode_inline(data[:size], SCHEMA, 5, DEFAULT)


@settings(max_examples=100)
@given(st.binary(max_size=300), st.sampled_from([b"", PLAIN, ZSTD, COLUMNS, PLAIN + b"\xff\xff\xff\xff\x40\0\0\0"]))
def test_any_bytes_are_refused(data, start):
    with pytest.raises(CorruptionError):
        decode_inline(start + data, SCHEMA, 1, DEFAULT)


def test_another_schema_or_number_of_rows_is_refused():
    fewer = define({"id": "int64"}, {"name": "string"})
    more = SCHEMA.add("x", "int64")
    other = define({"id": "string"}, {"name": "string", "total": "double", "seen": "timestamp"})
    for data in (encode_inline(rows(5)), plain(rows(5)), compressed(rows(5))):
        for schema, count in ((SCHEMA, 4), (SCHEMA, 6), (SCHEMA, 0), (fewer, 5), (more, 5), (other, 5)):
            with pytest.raises(CorruptionError):
                decode_inline(data, schema, count, DEFAULT)


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX + 1, 2**32 - 1])
def test_a_few_bytes_cannot_claim_to_be_many(size):
    with pytest.raises(CorruptionError, match="claims"):
        decode_inline(ZSTD + struct.pack("<I", size) + pa.compress(b"x", "zstd", asbytes=True), SCHEMA, 1, DEFAULT)


def test_what_expands_to_another_length_is_refused():
    data = compressed(rows(5))
    (size,) = struct.unpack_from("<I", data, 1)
    for wrong in (size - 1, size + 1, 0, MESSAGE_BYTES_MAX):
        with pytest.raises(CorruptionError):
            decode_inline(ZSTD + struct.pack("<I", wrong) + data[5:], SCHEMA, 5, DEFAULT)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused(codec):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA.update_arrow, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
        stream.write_table(rows(1000))
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    reader.read_next_message()
    message = reader.read_next_message().serialize().to_pybytes()
    with pytest.raises(CorruptionError, match="not a record batch"):
        decode_inline(PLAIN + message, SCHEMA, 1000, DEFAULT)


def test_other_messages_are_refused():
    message = SCHEMA.update_arrow.serialize().to_pybytes()
    with pytest.raises(CorruptionError, match="not a record batch"):
        decode_inline(PLAIN + message, SCHEMA, 0, DEFAULT)


@pytest.mark.parametrize(("place", "values"), [(4, [None]), (5, [None]), (4, [-1])])
def test_rows_without_a_time_or_a_diff_are_refused(place, values):
    table = rows(1).set_column(place, SCHEMA.update_arrow.field(place), pa.array(values, pa.int64()))
    for data in (encode_inline(table), plain(table)):
        with pytest.raises(CorruptionError, match=r"row without|before 0|MessagePack"):
            decode_inline(data, SCHEMA, 1, DEFAULT)


def test_invalid_text_is_refused():
    schema = define({"s": "string"}, None)
    text = pa.StringArray.from_buffers(1, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xff\xfe"))
    table = pa.Table.from_arrays([text, pa.array([0]), pa.array([1])], schema=schema.update_arrow)
    with pytest.raises(CorruptionError):
        decode_inline(encode_inline(table), schema, 1, DEFAULT)


# Columns, and many parts at once.


def test_a_few_short_rows_are_columns_and_others_record_batches():
    assert encode_inline(rows(1))[:1] == COLUMNS
    assert len(encode_inline(rows(1))) < 100
    assert encode_inline(rows(VALUES_MAX // 6 + 1))[:1] == ZSTD
    long = rows(1).set_column(1, SCHEMA.update_arrow.field(1), pa.array(["x" * BYTES_MAX]))
    assert encode_inline(long)[:1] == ZSTD
    nested = define({"k": "int64"}, {"v": "list<int64>"})
    table = pa.Table.from_arrays([[1], pa.array([[1]]), [0], [1]], schema=nested.update_arrow)
    assert encode_inline(table)[:1] == ZSTD


def test_columns_of_a_schema_that_has_no_such_form_are_refused():
    nested = define({"k": "int64"}, {"v": "list<int64>"})
    with pytest.raises(CorruptionError, match="no such form"):
        decode_inline(COLUMNS + msgspec.msgpack.encode([[1], [[1]], 0, 1]), nested, 1, DEFAULT)


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1, 1 << 63, 1.5, "x", True])
def test_a_value_that_does_not_fit_its_column_is_refused(value):
    schema = define({"k": "int32"}, None)
    with pytest.raises(CorruptionError):
        decode_inline(COLUMNS + msgspec.msgpack.encode([[value], 0, 1]), schema, 1, DEFAULT)


@settings(max_examples=80)
@given(updates(), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=8))
def test_parts_that_are_decoded_together_have_the_rows_of_each(drawn, cuts):
    schema, table = drawn
    encoders = (encode_inline, plain, compressed)
    tables = [table.slice(start, length) for start, length, _ in cuts]
    encoded = [
        encoders[kind](each) if each.num_rows else encode_inline(each)
        for each, (_, _, kind) in zip(tables, cuts, strict=True)
    ]
    together = decode_together(
        [(data, each.num_rows) for data, each in zip(encoded, tables, strict=True)], schema, DEFAULT
    )
    # Columns come first: one batch for all of them, then one for each record batch.
    order = sorted(range(len(cuts)), key=lambda place: encoded[place][:1] != COLUMNS)
    check_same(
        together,
        pa.concat_tables([decode_inline(encoded[place], schema, tables[place].num_rows, DEFAULT) for place in order]),
    )


@pytest.mark.parametrize("encoder", [encode_inline, plain, compressed])
def test_one_damaged_part_fails_those_that_are_decoded_with_it(encoder):
    good, bad = encode_inline(rows(3)), encoder(rows(2))
    assert decode_together([(good, 3), (bad, 2)], SCHEMA, DEFAULT).num_rows == 5
    for broken, count in ((bad[:-1], 2), (bad, 3), (b"\x09" + bad[1:], 2)):
        with pytest.raises(CorruptionError):
            decode_together([(good, 3), (broken, count)], SCHEMA, DEFAULT)


def test_columns_that_are_too_long_to_be_read_are_refused():
    with pytest.raises(CorruptionError, match="more than"):
        decode_inline(encode_inline(rows(1)), SCHEMA, 1, dataclasses.replace(DEFAULT, object_bytes_max=10))
