"""The grammar of names that end up in storage."""

from __future__ import annotations

from typing import Any

import pytest

from timespine.errors import UsageError
from timespine.ids import SEGMENT_MAX, BlobKey, check_segment, parse_blob_key, parse_blob_prefix

BAD_SEGMENTS: list[Any] = [
    "",
    "A",
    "ä",
    ".",
    "..",
    "a.b",
    "a b",
    "a/b",
    "a\\b",
    "-a",
    "_a",
    "a\n",
    "\n",
    "a\x00",
    None,
    7,
    b"a",
]


@pytest.mark.parametrize("segment", ["a", "0", "a-b_c", "orders", "9" * SEGMENT_MAX])
def test_well_formed_segment_is_given_back(segment: str) -> None:
    assert check_segment(segment, "collection id") == segment


@pytest.mark.parametrize("segment", [*BAD_SEGMENTS, "a" * (SEGMENT_MAX + 1)])
def test_malformed_segment_is_a_usage_error_that_says_what_it_was_for(segment: Any) -> None:
    with pytest.raises(UsageError, match="writer id"):
        check_segment(segment, "writer id")


def test_blob_key_is_taken_apart_and_put_together() -> None:
    key = parse_blob_key("orders/w-1/p_0")
    assert key == BlobKey("orders", "w-1", "p_0")
    assert str(key) == "orders/w-1/p_0"


@pytest.mark.parametrize("key", ["", "a", "a/b", "a/b/c/d", "/a/b", "a//b", "a/b/", "a/../b", "a/b/C", None, 7])
def test_malformed_blob_key_is_a_usage_error(key: Any) -> None:
    with pytest.raises(UsageError):
        parse_blob_key(key)


@pytest.mark.parametrize(("prefix", "segments"), [("", ()), ("a/", ("a",)), ("a/b/", ("a", "b"))])
def test_blob_prefix_is_whole_segments(prefix: str, segments: tuple[str, ...]) -> None:
    assert parse_blob_prefix(prefix) == segments


@pytest.mark.parametrize("prefix", ["a", "a/b", "a/b/c", "a/b/c/", "/", "//", "../", "a//", "A/", None, 7])
def test_malformed_blob_prefix_is_a_usage_error(prefix: Any) -> None:
    with pytest.raises(UsageError):
        parse_blob_prefix(prefix)


def test_long_malformed_key_is_shown_in_part() -> None:
    with pytest.raises(UsageError) as caught:
        parse_blob_key("x" * 100_000)
    assert len(str(caught.value)) < 300
