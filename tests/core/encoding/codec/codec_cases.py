"""Encoded states, diffs and runs that tests of the codec share."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

from state_harness import TERM_MS, WRITER, StateHarness, at, up

from timespine.core.batch import Part
from timespine.core.encoding.codec import decode_diff, decode_run, decode_state, encode_diff, encode_run, encode_state
from timespine.core.encoding.envelope import VERSION
from timespine.core.encoding.state_diff import diff
from timespine.core.state import State
from timespine.core.transitions import (
    AddRollup,
    AddSchema,
    ClaimMerge,
    ClaimTurn,
    CommitSink,
    RegisterCommitter,
    RegisterHold,
    RegisterReader,
    Retain,
    RollUpAll,
)
from timespine.model import Frontier

Decode = Callable[[bytes], Any]


def sealed(kind: int, payload: bytes, version: int = VERSION) -> bytes:
    """An envelope whose checksum is right, whatever is in it."""
    head = b"TS" + bytes((kind, version))
    return head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "big") + payload


def resealed(data: bytes, payload: bytes) -> bytes:
    return sealed(data[2], payload, data[3])


@functools.cache
def busy() -> tuple[State, State]:
    """Two states, one commit apart, with something of everything in them."""
    scene = StateHarness(arity=2)
    for when in range(6):
        scene.append(at(when + 1, when + 1), up("a", (when, when)), up("b", (when, when + 1), -1))
    scene.do(RollUpAll())
    (request,) = scene.state.trace.requests()
    scene.append(at(7, 7), up("a", (6, 9)), key="c/w1/p1")
    scene.write(up("c", (8, 7)), up("c", (7, 8)))
    for command in (
        RegisterReader("r1", at(2, 3), TERM_MS),
        RegisterHold("h1", Frontier(((2, 5), (5, 2))), "token"),
        Retain(at(1, 1)),
        RegisterCommitter("k1", TERM_MS),
        CommitSink("s1", 7),
        AddSchema(None, b"schema"),
        AddRollup(3, "c/w1/s3", 99),
        ClaimMerge(request.id, "m1", TERM_MS),
        ClaimTurn(WRITER, TERM_MS),
    ):
        scene.do(command)
    old = scene.state
    scene.append(at(9, 9), up("a", (7, 7)), up("d", (8, 8)))
    for name in (*old.__struct_fields__, "since"):
        assert getattr(old, name) or name in ("seqno", "status"), f"{name} is empty"
    return old, scene.state


def new() -> State:
    """The later one."""
    return busy()[1]


def state_entry() -> bytes:
    return encode_state(new())


def diff_entry() -> bytes:
    return encode_diff(diff(*busy()))


def run_entry() -> bytes:
    return encode_run(RUN, PARTS)


RUN = "c/w1/h1"


PARTS = (Part("c/w1/p1", 3, 9, -2, None, False, at(1), at(4), at(2), b"stats"), Part("", 1, 1, 1, b"x"))


ENTRIES: dict[str, tuple[Callable[[], bytes], Decode]] = {
    "state": (state_entry, decode_state),
    "diff": (diff_entry, decode_diff),
    "run": (run_entry, functools.partial(decode_run, RUN)),
}
