"""The bridge to arrangements: the layer above, which is loaded on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from timespine.client.arguments.argument_types import Row
from timespine.client.arguments.time_args import TimeLike
from timespine.model.frontier import Frontier


class ArrangementReads(Protocol):
    """Reads of an arrangement as of one time."""

    def get(self, key: Mapping[str, object]) -> list[tuple[Row, int]]:
        """Return the rows of a key, each with its count."""

    def fetch(self, keys: object, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of many keys, or some of their columns, with their counts in `_diff`."""

    def scan(
        self,
        lower: Mapping[str, object] | None = None,
        upper: Mapping[str, object] | None = None,
        *,
        inclusive: bool = False,
    ) -> Iterator[pa.Table]:
        """Give the rows from one key to before another, with their counts in `_diff`."""


class ArrangementHold:
    """A time that an arrangement keeps readable. Close it, or leave its `with`."""

    def __init__(self, holds: dict[object, int]) -> None:
        self._holds = holds

    def close(self) -> None:
        """Let the time go. Twice is fine."""
        self._holds.pop(self, None)

    def __enter__(self) -> ArrangementHold:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class OpenArrangement(Protocol):
    """An arrangement of a collection, as users and the client have it. `timespine.arrangement` has the class."""

    @property
    def collection_id(self) -> str:
        """The id of the collection that it follows."""

    @property
    def upper(self) -> Frontier:
        """The frontier below which it has all updates."""

    @property
    def since(self) -> Frontier:
        """The frontier from which on it can be read."""

    @property
    def collection_name(self) -> str:
        """The name of the collection that it follows."""

    @property
    def label(self) -> str:
        """The columns that rows are arranged by."""

    def get(self, key: object) -> list[Row]:
        """Return the rows of a key: a dictionary, a tuple of values in order, or a value of the first column."""

    def get_one(self, key: object) -> Row | None:
        """Return the row of a key that has at most one."""

    def fetch(self, keys: object, *, columns: Sequence[str] | None = None, counts: bool = False) -> pa.Table:
        """Return the rows of many keys, or some of their columns, in order."""

    def scan(self, lower: object = None, upper: object = None, *, inclusive: bool = False) -> Iterator[pa.Table]:
        """Give the rows from one key to before another, in order."""

    def at(self, as_of: TimeLike) -> ArrangementReads:
        """Return a view as of a time."""

    def wait(self, time: TimeLike, timeout: float = ...) -> bool:
        """Wait until it has all updates at a time."""

    def hold(self, as_of: TimeLike) -> ArrangementHold:
        """Keep a time readable that it has now."""

    def save(self) -> bool:
        """Save a checkpoint to its folder now; return False if it has all that there is already."""

    def metrics(self) -> dict[str, object]:
        """Return figures."""

    def look_up(self, key: Mapping[str, object], schema_id: int) -> pa.Table | None:
        """Return the rows of one key of the collection; None if it cannot tell."""

    def rows_as_of(self, time: int, keys: pa.Table, schema_id: int) -> pa.Table | None:
        """Return the rows of keys, or of those that begin with them, as of a time; None if it cannot tell."""

    def close(self) -> None:
        """Give up this use."""

    def end(self) -> None:
        """End it for all users."""

    def __enter__(self) -> OpenArrangement: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None: ...


def load_arrange() -> Callable[..., OpenArrangement]:
    """Import the function that arranges a collection."""
    arrange: Callable[..., OpenArrangement] = importlib.import_module("timespine.arrangement.arrangement").arrange
    return arrange
