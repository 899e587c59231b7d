"""New rows are judged by the newest schema: those of another one need a caller that has compared the two."""

from __future__ import annotations

import pytest
from state_harness import StateHarness, at, inline_part, up

from timespine.core.batch import HollowBatch, Order, Run
from timespine.core.transitions import (
    AddSchema,
    Append,
    AppendNext,
    Command,
    CompareAndAppend,
    Drain,
    Seal,
    Trim,
    Write,
)
from timespine.errors import SchemaChanged, UsageError
from timespine.model.description import Description


def command_of(kind: type, schema: int | None, judged_by: int | None) -> Command:
    """A command that adds one row that was made under a schema."""
    part = inline_part([up("a", 0)])
    if kind is Write:
        return Write(at(0), (0,), (part,), schema, judged_by=judged_by)
    batch = HollowBatch(Description(at(0), at(1), at(0)), 1, (Run((part,), Order.SORTED, schema),))
    if kind is AppendNext:
        return AppendNext(batch, 0, judged_by=judged_by)
    if kind is Append:
        return Append(batch, judged_by=judged_by)
    return CompareAndAppend((batch,), at(0), at(1), judged_by=judged_by)


KINDS = pytest.mark.parametrize("kind", [CompareAndAppend, Append, AppendNext, Write])


@KINDS
@pytest.mark.parametrize("judged_by", [None, 0, 1, 3])
def test_rows_of_an_older_schema_are_refused_unless_they_were_judged_by_the_newest(
    kind: type, judged_by: int | None
) -> None:
    scene = StateHarness()
    scene.evolve(3)
    refusal = scene.declined(command_of(kind, 1, judged_by))
    assert isinstance(refusal, SchemaChanged)
    assert (refusal.collection, refusal.written, refusal.newest, refusal.dropped) == ("c", 1, 2, ())


@KINDS
@pytest.mark.parametrize(("schema", "judged_by"), [(2, None), (2, 0), (1, 2), (0, 2), (None, None)])
def test_rows_of_the_newest_schema_or_judged_by_it_are_taken(
    kind: type, schema: int | None, judged_by: int | None
) -> None:
    scene = StateHarness()
    scene.evolve(3)
    scene.do(command_of(kind, schema, judged_by))


def test_rows_that_are_there_stay_when_the_schema_changes() -> None:
    scene = StateHarness()
    scene.evolve(1)
    scene.do(command_of(Write, 0, None))
    scene.do(AddSchema(0, b"another"))
    scene.do(Seal(at(1)))
    scene.do(Drain())
    (drained,) = scene.state.hollow_batches()
    assert [run.schema for run in drained.runs] == [0]


@pytest.mark.parametrize(("schema", "taken"), [(0, False), (1, True), (2, True), (None, True)])
def test_updates_are_trimmed_under_their_own_schema_or_a_newer_one(schema: int | None, taken: bool) -> None:
    scene = StateHarness()
    scene.evolve(2)
    scene.do(Write(at(0), (5,), (inline_part([up("a", 0), up("b", 5)]),), 1))
    scene.do(AddSchema(1, b"another"))
    scene.do(Seal(at(4)))
    scene.do(Drain())
    committed, reply = scene.attempt(Trim(0, (inline_part([up("b", 5)]),), at(4), schema))
    assert committed is taken
    if not taken:
        assert isinstance(reply, UsageError)
        assert "cannot be trimmed under 0" in str(reply)
