"""Which rows of a collection an arrangement has, by ids of columns: a renamed column is still the same column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from timespine.columnar.predicate.parser import parse_predicate
from timespine.columnar.predicate.predicate import Predicate
from timespine.columnar.predicate.rename_columns import rename_columns
from timespine.columnar.predicate.where import Where, as_predicate
from timespine.columnar.schema.schema import Schema
from timespine.errors import UsageError, short_repr

History = Literal["latest", "all"]
"""Which times can be read: only the newest complete one, or all from the first snapshot on."""


@dataclass(frozen=True, slots=True)
class NamedColumns:
    """A question in the names of one schema."""

    by: tuple[str, ...]
    """The columns that rows are arranged by."""
    columns: tuple[str, ...] | None
    """The columns of the rows; None: all."""
    where: Predicate | None
    """The condition that rows satisfy."""


@dataclass(frozen=True, slots=True)
class Question:
    """What `arrange` was asked for. Equal questions of one process share an arrangement."""

    by: tuple[int, ...] | None
    """Ids of the columns that rows are arranged by; None: the key."""
    columns: tuple[int, ...] | None
    """Ids of the columns of the rows; None: all, also those that come later."""
    condition: str | int | None
    """The text of the condition with ids for names; a number for one that has no text."""
    history: str
    folder: str | None
    """The absolute path of the folder of its checkpoints."""
    where: Predicate | None = field(default=None, compare=False)
    """The condition, in the names of `names`."""
    names: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    """The columns that the caller named, as they were named then, and their ids."""

    @staticmethod
    def of(
        schema: Schema,
        by: Sequence[str] | None,
        columns: Sequence[str] | None,
        where: Where | None,
        history: str,
        folder: str | None = None,
    ) -> Question:
        """Bind the names of a caller to the columns that have them now; raise a UsageError if one is unknown."""
        if history not in ("latest", "all"):
            raise UsageError(f"history is 'latest' or 'all', not {short_repr(history)}")
        by, columns = _checked("by", by), _checked("columns", columns)
        predicate = None if where is None else as_predicate(where)
        tested = () if predicate is None else predicate.columns
        ids = {name: schema.field(name).id for name in (*(by or ()), *(columns or ()), *tested)}
        by_ids, column_ids = (None if each is None else tuple(ids[name] for name in each) for each in (by, columns))
        condition = None if predicate is None else _condition(predicate, ids, where)
        if folder is not None and isinstance(condition, int):
            raise UsageError(
                "a polars expression cannot be compared with that of a checkpoint: write the condition as text, or "
                "with col(...)"
            )
        return Question(by_ids, column_ids, condition, history, folder, predicate, tuple(sorted(ids.items())))

    def in_names_of(self, schema: Schema) -> NamedColumns:
        """Return the question in the names of a schema; raise a UsageError if a column was dropped."""
        for name, id in self.names:
            if not schema.has_id(id):
                raise UsageError(f"column {short_repr(name)} was dropped")
        by = schema.key_names if self.by is None else tuple(schema.by_id(each).name for each in self.by)
        columns = None if self.columns is None else tuple(schema.by_id(each).name for each in self.columns)
        where = self.where
        if where is not None:
            where = rename_columns(where, {name: schema.by_id(id).name for name, id in self.names})
        return NamedColumns(by, columns, where)

    @property
    def is_whole(self) -> bool:
        """Return whether it has all columns of all rows."""
        return self.columns is None and self.condition is None


def _condition(predicate: Predicate, ids: dict[str, int], given: object) -> str | int:
    """Return what tells conditions apart: a text that means the condition, or a number of the object.

    SUBTLE: polars expressions that differ may print alike (test_conditions_that_print_alike_are_two_questions).
    """
    try:
        renamed = rename_columns(predicate, {name: f"#{id}" for name, id in ids.items()})
        text = str(renamed)
        return text if parse_predicate(text) == renamed else id(given)
    except UsageError:
        return id(given)


def _checked(what: str, names: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return names of columns; raise a UsageError if they are something else."""
    if names is None:
        return None
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise UsageError(f"{what} is a list of names of columns, not {short_repr(names)}")
    listed = tuple(names)
    if not listed or not all(isinstance(name, str) for name in listed):
        raise UsageError(f"{what} is a list of names of columns, at least one")
    return listed
