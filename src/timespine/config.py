"""Every limit and default, each with unit, bound and reason."""

from __future__ import annotations

from dataclasses import dataclass, fields

from timespine.errors import UsageError, shown

OUTSTANDING_MAX = 64
"""Parts of one batch that are encoded or uploaded at once, at most: each takes a thread."""


TURN_MS_MAX = 60_000
"""The longest turn of a change: what a machine needs to judge what came in between, and not what it needs to read."""


@dataclass(frozen=True, slots=True)
class Config:
    """Limits and defaults. Immutable: a store takes one when it is opened."""

    reader_lease_ms: int = 15 * 60_000
    """How long a reader may be silent before its hold on history may be taken away.
    Long enough for a laptop that slept over lunch; short enough to free space the same day."""

    writer_lease_ms: int = 60 * 60_000
    """How long a writer or committer may be silent. Expiry only fences it and frees what it
    left behind, so this bounds leaked space, never safety."""

    listener_seqnos: int = 1 << 16
    """Commits that a listener may be behind, about: then its lease is given back, and it has to begin again. A log
    and the blobs behind it must not grow for ever because somebody stopped listening and never said so."""

    claim_ms: int = 5 * 60_000
    """How long a soft claim keeps others from doing the same merge. A claim lost too early costs
    a merge done twice, one held too long a merge done late; neither costs data."""

    inline_part_bytes: int = 4096
    """Data up to this size may live in the state itself. One fsync instead of two for small commits."""

    inline_total_bytes: int = 1 << 20
    """Inline data in the whole state of a collection: it is part of every rollup."""

    history_entries: int = 1024
    """Entries that `history()` keeps per collection. Copied on every append, so it stays small."""

    rollup_seqnos: int = 128
    """Commits between two rollups, at least. Opening a collection replays about twice as many
    diffs at most; four times as many, or a quarter of its batches, where nothing runs in the background."""

    forget_within_ms: int = 24 * 3_600_000
    """By when history that expired is physically gone, if neither the collection nor its store says otherwise. Each
    term costs at most one rewrite of what may hold some; a day is within what people mean by "deleted"."""

    commit_attempts: int = 64
    """Compare-and-sets that one commit may lose to others before it gives up as Unavailable.
    Each loss means that somebody else made progress."""

    turn_ms: int = 1000
    """How long the other processes wait for a change that keeps losing to them, at most one minute. A change that
    found it too short claims twice as much the next time. It needs a few milliseconds; a process that died in its
    turn holds up the others for as long as this."""

    storage_attempts: int = 8
    """Tries of one storage call that fails as Unavailable, with a growing pause between them."""

    retry_pause_ms: int = 8
    """The first pause between two tries; it doubles up to `retry_pause_max_ms`."""

    retry_pause_max_ms: int = 1000
    """The longest pause between two tries."""

    delete_batch: int = 64
    """Blobs that garbage collection asks to delete at once: the bound on its concurrency."""

    part_bytes: int = 64 << 20
    """Rows in memory that become one part. Large enough to scan fast, small enough to be encoded while
    the next is gathered."""

    row_group_rows: int = 16_384
    """Rows per row group: what a lookup decodes, at most. A tenth of the usual, since each is skipped by its bounds."""

    stats_bytes: int = 1024
    """Column statistics of one part in the state. Columns over it are left out, and counted."""

    untrimmable: tuple[str, ...] = ("ts", "date", "day", "last_*", "*timestamp", "*_at", "*_time", "*_ts", "*_date")
    """Columns whose statistics are kept beyond that budget: names, `beginning*` or `*end`, in any case. By default
    those that people filter by when."""

    bound_bytes: int = 64
    """Bytes of an encoded bound: longer ones are cut, soundly."""

    run_parts: int = 32
    """Parts of one run that the state lists itself. A longer run is spilled as a hollow run."""

    outstanding_parts: int = 2
    """Parts of one batch that are encoded or uploaded at once, at most 64: who adds rows waits for the oldest. A store
    has as many threads for that, and at least four. Memory is up to three times `part_bytes` for each (its rows, their
    sorted copy, their encoding), and once for the rows that are gathered: see `columnar.write.run_writer`."""

    sort_bytes: int = 256 << 20
    """Rows of one append that are sorted together, and become one run. Of more, each part is sorted by itself while
    others are uploaded, so that memory does not grow with the rows; what overlaps is merged later."""

    merge_bytes: int = 256 << 20
    """Memory of one merge for rows that are being merged, at most about."""

    cache_bytes: int = 256 << 20
    """Decoded row groups that a process keeps, so that a second read costs no I/O."""

    object_bytes_max: int = 1 << 30
    """The largest blob that is read as a part."""

    footer_bytes_max: int = 64 << 20
    """The largest footer, with its indexes, that is parsed."""

    part_rows_max: int = 1 << 31
    """Rows of one part, at most."""

    part_decoded_bytes_max: int = 4 << 30
    """Uncompressed bytes that one part may claim to have, at most: a bound on what decoding allocates."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "untrimmable":
                if type(value) is not tuple or not all(type(text) is str and text.strip("*") for text in value):
                    raise UsageError(f"config untrimmable must be a tuple of names, not {shown(value)}")
                continue
            if type(value) is not int or not 1 <= value <= 1 << 40:
                raise UsageError(f"config {each.name} must be an integer from 1 to 2^40, not {shown(value)}")
        if self.turn_ms > TURN_MS_MAX:
            raise UsageError(f"config turn_ms is at most {TURN_MS_MAX}, not {self.turn_ms}")
        if self.outstanding_parts > OUTSTANDING_MAX:
            raise UsageError(f"config outstanding_parts is at most {OUTSTANDING_MAX}, not {self.outstanding_parts}")


DEFAULT = Config()
