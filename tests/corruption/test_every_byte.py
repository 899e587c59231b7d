"""Every byte of a part that has all that a part can have: Bloom filters, dictionaries, page indexes and page tables."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from stored_part import Bytes, encoded, opened, rows

from timespine.columnar.parts import part_writer
from timespine.config import DEFAULT
from timespine.errors import CorruptionError

CONFIG = dataclasses.replace(DEFAULT, row_group_rows=600, page_rows=100)
SMALL = dataclasses.replace(DEFAULT, row_group_rows=8, page_rows=4, piece_hash="sha256")
KINDS = [("sha256", "lz4"), ("xxh3", "lz4"), ("sha256", "zstd"), ("xxh3", "zstd")]
"""Hashes of pieces, and codecs."""

some = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def dictionaries_of_few_rows(monkeypatch):
    monkeypatch.setattr(part_writer, "DICTIONARY_ROWS_MIN", 1)


def part_with_everything(piece_hash, compression):
    """A part of 1,200 rows, and the same once it was opened."""
    config = dataclasses.replace(CONFIG, piece_hash=piece_hash, compression=compression)
    made = encoded(rows(1200), config=config)
    reader = opened(made, config=config)
    assert (reader.groups, reader.footer.piece_hash) == (2, piece_hash)
    assert reader.footer.blooms
    assert reader.footer.page_tables
    names = reader._metadata.row_group(0).column(1)
    assert names.has_dictionary_page
    assert names.compression == compression.upper() or compression == "lz4"
    return made, reader


def flipped(data, place, mask=0):
    broken = bytearray(data)
    broken[place] ^= mask or 1 << place % 8
    return Bytes(bytes(broken))


@pytest.mark.parametrize(("piece_hash", "compression"), KINDS)
def test_every_flipped_byte_is_found_by_who_looks_at_all_of_them(piece_hash, compression):
    made, reader = part_with_everything(piece_hash, compression)
    reader.verify()
    missed = []
    for place in range(len(made.data)):
        try:
            opened(made, config=CONFIG, fetch=flipped(made.data, place)).verify()
            missed.append(place)
        except CorruptionError:
            pass
    assert missed == []


@pytest.mark.parametrize("piece_hash", ["sha256", "xxh3"])
def test_every_flipped_byte_of_a_bloom_filter_is_found_by_who_asks_it(piece_hash):
    """A filter with a damaged bit would say that a row is not there."""
    made, reader = part_with_everything(piece_hash, "lz4")
    start, stop = reader.bloom_range
    assert stop - start > 500
    for place in range(start, stop):
        damaged = opened(made, config=CONFIG, fetch=flipped(made.data, place))
        refused = 0
        for group in (0, 1):
            try:
                assert damaged.may_contain(group, "id", 1200 * group + 2)
            except CorruptionError:
                refused += 1
        assert refused == 1, "each byte is in the filter of one row group"


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_every_flipped_byte_is_found_by_reads_of_all_pages_or_of_the_whole_or_does_not_matter(compression):
    table, config = rows(16), dataclasses.replace(SMALL, compression=compression)
    made = encoded(table, config=config)
    refused = Counter()
    for place in range(len(made.data) - made.meta.tail):
        fetch = flipped(made.data, place)
        reader = opened(made, config=config, fetch=fetch)
        try:
            assert reader.read().equals(table)
        except CorruptionError:
            refused["whole"] += 1
        try:
            for page in range(4):
                assert reader.read_page(*divmod(page, 2), table.column_names).equals(table.slice(4 * page, 4))
        except CorruptionError:
            refused["pages"] += 1
    reader = opened(made, config=config)
    chunks = reader.ranges(range(2), table.column_names)
    assert refused["whole"] == sum(stop - start for start, stop in chunks)
    assert refused["pages"] >= refused["whole"], "page tables too"


@some
@examples(st.data())
def test_several_damaged_places_of_any_kind_are_found(data):
    """A byte may have any other value, and several may be wrong."""
    made, _ = part_with_everything(*data.draw(st.sampled_from(KINDS)))
    damaged = data.draw(
        st.dictionaries(st.integers(0, len(made.data) - 1), st.integers(1, 255), min_size=1, max_size=4)
    )
    broken = bytearray(made.data)
    for place, mask in damaged.items():
        broken[place] ^= mask
    with pytest.raises(CorruptionError):
        opened(made, config=CONFIG, fetch=Bytes(bytes(broken))).verify()
