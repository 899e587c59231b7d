"""Every command and the pure function that carries it out.

`apply` is the one entry point: it finds the function, and turns a UsageError about
the command's own arguments into a refusal like any other, so that no command can
affect the others of its group. The types of its arguments were checked when it was made (`command`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timespine.core.state import Commit, NoOp, State, Status
from timespine.core.transitions.append import (
    AdvanceUpper,
    Append,
    AppendNext,
    AppendNextResult,
    AppendResult,
    CompareAndAppend,
    advance_upper,
    append,
    append_next,
    compare_and_append,
)
from timespine.core.transitions.command import Command
from timespine.core.transitions.lifecycle import (
    AddRollup,
    AddSchema,
    Finalize,
    RemoveRollups,
    ThinRollups,
    add_rollup,
    add_schema,
    finalize,
    remove_rollups,
    thin_rollups,
)
from timespine.core.transitions.merges import (
    ApplyMerge,
    ClaimMerge,
    Exert,
    Forget,
    Refresh,
    RollUpAll,
    apply_merge,
    claim_merge,
    exert,
    forget,
    refresh,
    roll_up_all,
)
from timespine.core.transitions.readers import (
    CompareAndDowngrade,
    DowngradeReader,
    ExpireLeases,
    ExpireReader,
    ExpireResult,
    Grant,
    RegisterHold,
    RegisterReader,
    ReleaseHold,
    Retain,
    compare_and_downgrade,
    downgrade_reader,
    expire_leases,
    expire_reader,
    register_hold,
    register_reader,
    release_hold,
    retain,
)
from timespine.core.transitions.turns import ClaimTurn, ReleaseTurn, TurnTaken, claim_turn, release_turn
from timespine.core.transitions.unsealed import Drain, Evict, Seal, Trim, Write, drain, evict, seal, trim, write
from timespine.core.transitions.writers import (
    AlreadyCommitted,
    CommitSink,
    DropSink,
    ExpireCommitter,
    ExpireWriter,
    HeartbeatWriter,
    RegisterCommitter,
    RegisterWriter,
    commit_sink,
    drop_sink,
    expire_committer,
    expire_writer,
    heartbeat_writer,
    register_committer,
    register_writer,
)
from timespine.errors import ClosedError, UsageError, short_repr

TRANSITIONS: dict[type[Command], Callable[[State, Any, int], Commit[Any] | NoOp[Any]]] = {
    AddRollup: add_rollup,
    AddSchema: add_schema,
    AdvanceUpper: advance_upper,
    Append: append,
    AppendNext: append_next,
    ApplyMerge: apply_merge,
    ClaimMerge: claim_merge,
    ClaimTurn: claim_turn,
    CommitSink: commit_sink,
    CompareAndAppend: compare_and_append,
    CompareAndDowngrade: compare_and_downgrade,
    DowngradeReader: downgrade_reader,
    Drain: drain,
    DropSink: drop_sink,
    Evict: evict,
    Exert: exert,
    ExpireCommitter: expire_committer,
    ExpireLeases: expire_leases,
    ExpireReader: expire_reader,
    ExpireWriter: expire_writer,
    Finalize: finalize,
    Forget: forget,
    HeartbeatWriter: heartbeat_writer,
    Refresh: refresh,
    RegisterCommitter: register_committer,
    RegisterHold: register_hold,
    RegisterReader: register_reader,
    RegisterWriter: register_writer,
    ReleaseHold: release_hold,
    ReleaseTurn: release_turn,
    RemoveRollups: remove_rollups,
    Retain: retain,
    RollUpAll: roll_up_all,
    Seal: seal,
    ThinRollups: thin_rollups,
    Trim: trim,
    Write: write,
}


NOW_MAX = 1 << 52
"""The latest clock, in milliseconds since 1970: the year 144,683."""

ON_TOMBSTONES = frozenset(
    {
        AddRollup,
        DropSink,
        ExpireCommitter,
        ExpireLeases,
        ExpireReader,
        ExpireWriter,
        Finalize,
        HeartbeatWriter,
        RegisterCommitter,
        RegisterWriter,
        ReleaseHold,
        RemoveRollups,
        ThinRollups,
    }
)
"""The commands that a finalized collection accepts: the end of leases, and the rollups that let its log go."""


def apply(state: State, command: Command, now_ms: int) -> Commit[Any] | NoOp[Any]:
    """Carry out one command."""
    transition = TRANSITIONS.get(type(command))
    if transition is None or type(now_ms) is not int or abs(now_ms) > NOW_MAX:
        return NoOp(
            UsageError(f"{short_repr(command)} at {short_repr(now_ms)} is not a command at a time in milliseconds")
        )
    if state.status is Status.FINALIZED and type(command) not in ON_TOMBSTONES:
        return NoOp(ClosedError(f"collection {state.collection} is finalized"))
    try:
        return transition(state, command, now_ms)
    except UsageError as error:
        return NoOp(error)


__all__ = [
    "TRANSITIONS",
    "AddRollup",
    "AddSchema",
    "AdvanceUpper",
    "AlreadyCommitted",
    "Append",
    "AppendNext",
    "AppendNextResult",
    "AppendResult",
    "ApplyMerge",
    "ClaimMerge",
    "ClaimTurn",
    "Command",
    "CommitSink",
    "CompareAndAppend",
    "CompareAndDowngrade",
    "DowngradeReader",
    "Drain",
    "DropSink",
    "Evict",
    "Exert",
    "ExpireCommitter",
    "ExpireLeases",
    "ExpireReader",
    "ExpireResult",
    "ExpireWriter",
    "Finalize",
    "Forget",
    "Grant",
    "HeartbeatWriter",
    "Refresh",
    "RegisterCommitter",
    "RegisterHold",
    "RegisterReader",
    "RegisterWriter",
    "ReleaseHold",
    "ReleaseTurn",
    "RemoveRollups",
    "Retain",
    "RollUpAll",
    "Seal",
    "ThinRollups",
    "Trim",
    "TurnTaken",
    "Write",
    "apply",
]
