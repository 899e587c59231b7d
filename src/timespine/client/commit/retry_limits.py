"""The retry policy of writes: how often a commit is tried again, for each reason.

Two loops commit rows by these limits: `client.write.step_commit` in the thread of a write, and `group_small_appends`
for small appends that a leading thread commits for others. Changes of schemas and names go by them too. A refused try
has changed nothing, so a limit bounds work and time, never correctness.
"""

from __future__ import annotations

from dataclasses import dataclass

from timespine.errors import Contention


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits by the reason of the refusal."""

    placements: int = 64
    """Times that durable rows are placed, because other processes committed first. A commit that keeps losing claims a
    turn, and one turn that is long enough is the last. The rest is for processes whose clocks differ by more than a
    turn."""
    quick_losses: int = 3
    """Placements that a change computes beside the other threads and processes. After those it claims a turn
    (`client.commit.cross_process_turn`), and computes while they wait."""
    reads: int = 4
    """Times that a change reads the rows it depends on: again only if the schema changed, or history was expired."""
    stagings: int = 3
    """Times that rows are put again: because the state has no room for inline rows, the writer was expired, or the
    schema changed. The last try after these puts everything as blobs."""
    group_starts: int = 4
    """Times that a batch of several small appends is numbered anew, because other processes took its times. Then each
    append becomes a batch of its own, whose time the commit chooses."""
    schema_judgements: int = 16
    """Times that one offer is judged by a newer schema. Each time another process changed the schema in between."""

    schema_changes: int = 64
    """Times that a change of the schema is made anew, on the schema of a process that was first."""
    renames: int = 64
    """Times that the collection to rename is found again, because another process moved the name to another one."""


RETRY = RetryPolicy()
"""The policy of this process."""


def contention(names: str, attempts: int) -> Contention:
    """Make the error for a commit that other processes outran on every try."""
    return Contention(
        f"nothing was changed: other processes committed to {names} first, {attempts} times in a row; make the change "
        "again, or let them commit more rows at once"
    )


def schema_contention(name: str, attempts: int) -> Contention:
    """Make the error for a change of a schema that other processes outran on every try."""
    return Contention(
        f"nothing was changed: other processes changed the schema of {name} first, {attempts} times in a row; look at "
        "it, and make the change again"
    )


def rename_contention(name: str, attempts: int) -> Contention:
    """Make the error for a rename whose name stood for another collection on every try."""
    return Contention(
        f"nothing was changed: other processes moved the name {name} to another collection, {attempts} times in a row; "
        "look at the names, and rename again"
    )


def reread_contention(names: str, attempts: int) -> Contention:
    """Make the error for a change whose rows could not be followed on any try."""
    return Contention(
        f"nothing was changed: {names} got another schema, or lost history, each of the {attempts} times that "
        "this change read its rows; make the change again"
    )
