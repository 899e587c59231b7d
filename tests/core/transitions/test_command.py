"""Every command is checked once, when it is made: one that exists can be stored, and be read again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from state_harness import at, batch, inline_part, up

from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.transitions import TRANSITIONS, AdvanceUpper, AppendNext, Command, RegisterReader
from timespine.core.transitions.command import _decoder_of
from timespine.errors import UsageError
from timespine.model.frontier import Frontier


@pytest.mark.parametrize("kind", TRANSITIONS, ids=lambda kind: kind.__name__)
def test_every_command_is_checked(kind: type[Command]) -> None:
    assert issubclass(kind, Command)
    assert kind.__post_init__ is Command.__post_init__
    fields = _decoder_of(kind).type.__struct_fields__
    assert fields == kind.__struct_fields__
    if fields:
        with pytest.raises(UsageError, match=f"{kind.__name__} cannot be stored"):
            kind(*[object()] * len(fields))


NESTED: list[Any] = [
    Part("", "one"),  # type: ignore[arg-type]
    Part("", -1),
    Part("", 1, diff_sum=1 << 64),
    Part("\ud800", 1),
    Part("", 1, lower=(3,)),  # type: ignore[arg-type]
    "no part",
]


@pytest.mark.parametrize("part", NESTED, ids=range(len(NESTED)))
def test_what_is_inside_a_command_is_checked_too(part: Part) -> None:
    good = batch(at(0), at(1), inline_part([up("a", 0)]))
    AppendNext(good, 0)
    with pytest.raises(UsageError, match="AppendNext cannot be stored"):
        AppendNext(HollowBatch(good.desc, 1, (Run((part,)),)), 0)


def test_a_changed_command_is_checked_again() -> None:
    with pytest.raises(UsageError, match="RegisterReader cannot be stored"):
        msgspec.structs.replace(RegisterReader("r1", None, 1), term_ms="1 s")


def test_a_command_is_what_storage_gives_back() -> None:
    command = AppendNext(batch(at(0), at(1), inline_part([up("a", 0)])), 0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=AppendNext) == command


def test_no_frontier_is_made_to_check_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    upper = at(3)
    monkeypatch.setattr(Frontier, "__post_init__", lambda frontier: pytest.fail("it was made once more"))
    AdvanceUpper(upper)
