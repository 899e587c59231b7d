"""Random worlds with a Bloom filter and dictionaries in each part, which only larger parts have: reads are the same."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from unittest import mock

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st
from run_cases import CONFIG, Place, given, naive, order_keys, questions, worlds

from timespine.columnar.parts import part_writer
from timespine.columnar.parts.part_reader import PartReader
from timespine.columnar.predicate.key_set import KeySet
from timespine.columnar.scan.scan import scan
from timespine.columnar.scan.scan_request import ScanRequest
from timespine.columnar.schema.schema import define

some = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
KV = define({"k": "int64"}, {"v": "string"})
asked = Counter()
"""Whether a part had filters, and what they answered, and how often."""


@contextlib.contextmanager
def filters_in_each_part():
    """Write filters and dictionaries however few the rows are, and count the answers of filters."""
    answer = PartReader.may_contain

    def counted(self, group, column, value):
        found = answer(self, group, column, value)
        asked[self.footer.blooms, found] += 1
        return found

    with (
        mock.patch.object(part_writer, "BLOOM_ROWS_MIN", 1),
        mock.patch.object(part_writer, "DICTIONARY_ROWS_MIN", 1),
        mock.patch.object(PartReader, "may_contain", counted),
    ):
        yield


@some
@examples(st.data())
def test_a_scan_with_filters_in_each_part_gives_exactly_what_is_seen(data):
    with filters_in_each_part():
        place, runs, history, pools = data.draw(worlds(keyless=False))
        wanted, naively = data.draw(questions(place.newest, pools))
        tables = list(scan(place.parts(audit=1.0), runs, wanted, 1 << 20))
        assert given(tables, wanted) == naive(history, wanted, **naively)


@some
@examples(st.data())
def test_a_lookup_of_each_key_finds_its_rows_with_filters_in_each_part(data):
    """One key at a time: only such a read asks filters."""
    with filters_in_each_part():
        place, runs, _, _ = data.draw(worlds(max_runs=3, keyless=False))
        schema = place.newest
        whole = ScanRequest(schema, schema.names)
        tables = list(scan(place.parts(), runs, whole, 1 << 20))
        rows, at = given(tables, whole), [schema.names.index(name) for name in schema.key_names]
        for table in tables:
            keys = table.select(schema.key_names)
            for number, (encoded,) in enumerate(zip(*order_keys([keys], schema.key_names), strict=True)):
                wanted = replace(whole, keys=KeySet(keys.slice(number, 1)))
                expected = {row: diff for row, diff in rows.items() if tuple(row[each] for each in at) == encoded}
                assert given(scan(place.parts(audit=1.0), runs, wanted, 1 << 20), wanted) == expected


def test_filters_of_few_rows_are_asked_and_say_no():
    asked.clear()
    with filters_in_each_part():
        place = Place([KV], replace(CONFIG, bound_bytes=64))
        run = place.run([((n, "x"), (0,), 1) for n in range(0, 40, 2)], cuts=(10,))
        for number in range(40):
            wanted = ScanRequest(KV, KV.names, keys=KeySet(pa.table({"k": [number]})))
            found = [row["k"] for table in scan(place.parts(), [run], wanted, 1 << 20) for row in table.to_pylist()]
            assert found == [number] * (number % 2 == 0)
    assert asked[True, True] >= 20, "each key that is there"
    assert asked[True, False] >= 10, "most of the others between two rows of a row group"
    assert asked[False, True] == 0, "each part has a filter"
