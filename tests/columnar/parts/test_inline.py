"""Inline data: small, exact, and never trusted."""

import dataclasses
import random
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_part import SCHEMA, check_same, rows
from test_stats import updates

from timespine.columnar.parts.inline import MESSAGE_BYTES_MAX, decode_inline, encode_inline
from timespine.columnar.schema.schema import define
from timespine.config import DEFAULT
from timespine.errors import CorruptionError

PLAIN, ZSTD = b"\x00", b"\x01"


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

    assert encode_inline(rows(1))[:1] == ZSTD
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
    plain = PLAIN + table.combine_chunks().to_batches()[0].serialize().to_pybytes()
    check_same(decode_inline(plain, SCHEMA, 5, DEFAULT), table)
    decoded = 0
    for data in (plain, encode_inline(table)):
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
    for data in (encode_inline(rows(5)), PLAIN + rows(5).to_batches()[0].serialize().to_pybytes()):
        for size in range(len(data)):
            with pytest.raises(CorruptionError):
                decode_inline(data[:size], SCHEMA, 5, DEFAULT)


@settings(max_examples=100)
@given(st.binary(max_size=300), st.sampled_from([b"", PLAIN, ZSTD, PLAIN + b"\xff\xff\xff\xff\x40\0\0\0"]))
def test_any_bytes_are_refused(data, start):
    with pytest.raises(CorruptionError):
        decode_inline(start + data, SCHEMA, 1, DEFAULT)


def test_another_schema_or_number_of_rows_is_refused():
    data = encode_inline(rows(5))
    fewer = define({"id": "int64"}, {"name": "string"})
    more = SCHEMA.add("x", "int64")
    other = define({"id": "string"}, {"name": "string", "total": "double", "seen": "timestamp"})
    for schema, count in ((SCHEMA, 4), (SCHEMA, 6), (SCHEMA, 0), (fewer, 5), (more, 5), (other, 5)):
        with pytest.raises(CorruptionError):
            decode_inline(data, schema, count, DEFAULT)


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX + 1, 2**32 - 1])
def test_a_few_bytes_cannot_claim_to_be_many(size):
    with pytest.raises(CorruptionError, match="claims"):
        decode_inline(ZSTD + struct.pack("<I", size) + pa.compress(b"x", "zstd", asbytes=True), SCHEMA, 1, DEFAULT)


def test_what_expands_to_another_length_is_refused():
    data = encode_inline(rows(5))
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
    with pytest.raises(CorruptionError, match=r"row without|before 0"):
        decode_inline(encode_inline(table), SCHEMA, 1, DEFAULT)


def test_invalid_text_is_refused():
    schema = define({"s": "string"}, None)
    text = pa.StringArray.from_buffers(1, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xff\xfe"))
    table = pa.Table.from_arrays([text, pa.array([0]), pa.array([1])], schema=schema.update_arrow)
    with pytest.raises(CorruptionError):
        decode_inline(encode_inline(table), schema, 1, DEFAULT)
