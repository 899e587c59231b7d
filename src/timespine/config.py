"""Every limit and default, each with unit, bound and reason."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from timespine.errors import UsageError, short_repr

OUTSTANDING_MAX = 64
"""Parts of one batch that are encoded or uploaded at once, at most: each takes a thread."""

READ_THREADS_MAX = 32
"""Threads of a store that decode, at most: more wait for memory, and each holds what it decodes."""

_CHOICES = {
    # Every reader of Parquet of the last years knows both.
    "compression": ("lz4", "zstd"),
    "piece_hash": ("xxh3", "sha256"),
}
"""The values of each field that is one of some texts."""

LEVELS = 9
"""Levels of an arrangement. The last one has no bound: 100 billion rows fill a disk of today."""

LEVEL0_ROWS_MAX = 99_999
"""The largest bound of level 0 of an arrangement: merges of level 0 run to their end, 64 batches at once."""

BATCHES_MAX = 65_536
"""The largest bound of batches of an arrangement: a reader searches each of them."""

RETRACTION_MULTIPLIER_MAX = 1_000
"""The largest multiplier of retractions of an arrangement: it raises a batch of retractions by three levels."""

TURN_MS_MAX = 60_000
"""The longest turn of a change. A turn covers the check against intervening commits, and not the reads."""


@dataclass(frozen=True, slots=True)
class Config:
    """Limits and defaults. Immutable: `open` takes one for each store.

    Users may want to change `cache_bytes`, `merge_bytes` and `sort_bytes` (memory), `part_bytes` (size of files),
    `forget_within_ms` (deadline of deletion) and `reader_lease_ms` (patience with silent readers). The others are
    limits of mechanisms: change them with a measurement.
    """

    reader_lease_ms: int = 15 * 60_000
    """How long a reader may be silent before maintenance removes its lease on history. Long enough for a laptop that
    slept over lunch; short enough to free space the same day."""

    writer_lease_ms: int = 60 * 60_000
    """How long a writer or committer may be silent. Expiry only fences it and frees its unreferenced blobs, so this
    bounds leaked space, never safety."""

    listener_seqnos: int = 1 << 16
    """Commits that a commit stream may be behind, about. Beyond it the stream loses its lease and must begin again: a
    stream that was abandoned but not closed must not keep the log and its blobs for ever."""

    claim_ms: int = 5 * 60_000
    """How long a claim keeps other processes from the same merge. A claim that is too short costs a merge done twice,
    one that is too long a merge done late; neither costs data."""

    inline_part_bytes: int = 4096
    """Data up to this size may live in the state itself. One fsync instead of two for small commits."""

    inline_total_bytes: int = 1 << 20
    """Inline data in the whole state of a collection: it is part of every rollup."""

    history_entries: int = 1024
    """Entries that `history()` keeps per collection. Copied on every append, so it stays small."""

    rollup_seqnos: int = 128
    """Commits between two rollups, at least. Opening a collection replays about twice this number of diffs at most.
    Without background maintenance it is four times this number, or a quarter of the batches."""

    forget_within_ms: int = 24 * 3_600_000
    """The deadline by which maintenance removes expired history physically, unless the collection or its store sets
    another one. Each term costs at most one rewrite of the parts that may hold expired history; a day is within what
    people mean by "deleted"."""

    commit_attempts: int = 64
    """Compare-and-sets that one commit may lose to others before it gives up as Unavailable. Each loss means that
    another process made progress."""

    turn_ms: int = 1000
    """How long the other processes wait for a change that keeps losing to them, at most one minute. A change that found
    its turn too short claims twice as much the next time. It needs a few milliseconds; a process that dies in its turn
    delays the others for this long."""

    relay_appends: bool = True
    """Whether processes of one machine that lose compare-and-sets to each other let one of them commit the small
    appends of all. Off, each commits its own, and most compare-and-sets of many processes are lost."""

    storage_attempts: int = 8
    """Attempts of one storage call that fails as Unavailable, with a growing pause between them."""

    retry_pause_ms: int = 8
    """The first pause between two attempts; it doubles up to `retry_pause_max_ms`."""

    retry_pause_max_ms: int = 1000
    """The longest pause between two attempts."""

    delete_batch: int = 64
    """Blobs that garbage collection deletes at once: the bound on its concurrency."""

    part_bytes: int = 64 << 20
    """Bytes of rows in memory that become one part. Large enough to scan fast, small enough to be encoded while the
    next part is gathered."""

    row_group_rows: int = 16_384
    """Rows per row group: a lookup decodes at most this number. A tenth of the usual, since a lookup skips row groups
    by their bounds."""

    page_rows: int = 4096
    """Rows per page of a column: a lookup decodes at most this number of those columns that it is not looked up by. A
    scan takes a twentieth longer than with one page per row group. With zstd it would take a fifth longer, so where
    blobs are remote the default is one page per row group."""

    compression: Literal["lz4", "zstd"] = "lz4"
    """How pages of parts are compressed. lz4 takes half the time of zstd to decode and two thirds to encode, and
    half as much space again. Where blobs are remote the default is zstd, since bytes take longer than decoding."""

    piece_hash: Literal["xxh3", "sha256"] = "xxh3"
    """The hash of every piece of a part, which a reader compares before it decodes the piece. xxh3 finds accidents, and
    takes a sixth of the time of SHA-256, which was a fifth of a scan. SHA-256 also finds a piece forged by a user who
    can write blobs and no logs. Where blobs are remote the default is SHA-256, since logs are often kept elsewhere."""

    stats_bytes: int = 1024
    """Bytes of column statistics of one part in the state. Columns beyond this budget have no statistics, and are
    counted."""

    stats_always_keep: tuple[str, ...] = (
        "ts",
        "date",
        "day",
        "last_*",
        "*timestamp",
        "*_at",
        "*_time",
        "*_ts",
        "*_date",
    )
    """Columns whose statistics are kept beyond `stats_bytes`: names, `beginning*` or `*end`, in any case. The default
    names the columns of times, by which people filter most often."""

    bound_bytes: int = 64
    """Bytes of an encoded bound. The writer truncates longer ones so that they stay bounds."""

    run_parts: int = 32
    """Parts of one run that the state lists itself. A longer run becomes a hollow run."""

    outstanding_parts: int = 2
    """Parts of one batch that are encoded or uploaded at once, at most 64: a writer that adds rows waits for the
    oldest. A store has this number of threads for the work, and at least `read_threads`. Memory is up to three times
    `part_bytes` for each (its rows, their sorted copy, their encoding), and once for the rows that are gathered: see
    `columnar.write.run_writer`."""

    read_threads: int | None = None
    """Threads of a store that decode and read ahead, 1 to 32. By default as many as the cores that the process may use,
    4 to 32. A whole read that merges is divided among as many, at most 8, and so is its memory. One that does not merge
    decodes 8 row groups in each, which it returns anyway."""

    sort_bytes: int = 256 << 20
    """Bytes of rows of one append that are sorted together, and become one run. Beyond it the writer sorts each part by
    itself while others are uploaded, so that memory does not grow with the rows; maintenance merges overlapping parts
    later."""

    merge_bytes: int = 256 << 20
    """Memory of one merge for the rows in it, at most about."""

    merge_process: bool = True
    """Whether background merges of 262,144 updates or more run in a process of their own. The first of them starts it,
    with memory of its own (300 MB and what `merge_bytes` allows), and it ends after a minute without one. Off, merges
    share the interpreter lock with the program: beside a busy thread they keep 2 to 3 % of their speed."""

    any_order_rows: int = 1 << 16
    """Rows of a run from which on a whole read may return them in any order: those that few changes do not touch then
    pass unsorted. Fewer rows come in order, since a person may read them, and to sort them takes no longer."""

    cache_bytes: int = 256 << 20
    """Decoded row groups that a process keeps, so that a second read costs no I/O."""

    arrangement_level_rows: tuple[int, ...] = (14_999, *(10**digits - 1 for digits in range(5, 12)))
    """Rows of a batch of each level of an arrangement but the last, at most: eight numbers that do not descend. Batches
    of similar size are merged, so each bound is ten times the one before. That of level 0 is 1 to 99,999: batches of a
    stream belong there, since level 0 sets the pace of all merges."""

    arrangement_merge_min: tuple[int, ...] = (8, 8, 3, 3, 3, 3, 2, 2, 2)
    """Batches that each of the nine levels of an arrangement needs to merge, at least 2. Small batches are cheap to
    search and many, so they wait for more company. Fewer means faster reads and more merging."""

    arrangement_merge_max: int = 64
    """Batches of one merge of an arrangement, at most; not fewer than a level needs. A level that has fallen behind
    catches up in few merges."""

    arrangement_batches: int = 128
    """Batches of an arrangement at which insertion waits for merges: a reader searches all of them. More than can wait
    for company in all levels (25 by default), at most 65,536."""

    arrangement_retraction_multiplier: int = 0
    """How often a retraction of a merged batch counts in addition to once, when the level of the batch is chosen: 0 to
    1,000. A batch of many retractions then rises sooner, and meets the rows that it cancels sooner; that pays for
    collections whose rows are replaced again and again."""

    arrangement_memory_bytes: int | None = None
    """Bytes that the batches of all arrangements of a process may take in memory, 1 to 2^40, before they go to mapped
    files: from 85 % of it on large ones, from 90 % on all. By default half of the memory of the machine or its control
    group, and all else that the process holds counts too. Only arrangements with a folder have files."""

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
            if each.name == "stats_always_keep":
                if type(value) is not tuple or not all(type(text) is str and text.strip("*") for text in value):
                    raise UsageError(f"config stats_always_keep must be a tuple of names, not {short_repr(value)}")
                continue
            if each.name in ("relay_appends", "merge_process"):
                if type(value) is not bool:
                    raise UsageError(f"config {each.name} must be True or False, not {short_repr(value)}")
                continue
            choices = _CHOICES.get(each.name)
            if choices is not None:
                if value not in choices:
                    raise UsageError(f"config {each.name} must be one of {choices}, not {short_repr(value)}")
                continue
            if value is None and each.name in ("arrangement_memory_bytes", "read_threads"):
                continue
            if each.name.startswith("arrangement_") and each.name != "arrangement_memory_bytes":
                continue
            if type(value) is not int or not 1 <= value <= 1 << 40:
                raise UsageError(f"config {each.name} must be an integer from 1 to 2^40, not {short_repr(value)}")
        if self.turn_ms > TURN_MS_MAX:
            raise UsageError(f"config turn_ms is at most {TURN_MS_MAX}, not {self.turn_ms}")
        if self.outstanding_parts > OUTSTANDING_MAX:
            raise UsageError(f"config outstanding_parts is at most {OUTSTANDING_MAX}, not {self.outstanding_parts}")
        if (self.read_threads or 0) > READ_THREADS_MAX:
            raise UsageError(f"config read_threads is at most {READ_THREADS_MAX}, not {self.read_threads}")
        check_level_rules(
            self.arrangement_level_rows,
            self.arrangement_merge_min,
            self.arrangement_merge_max,
            self.arrangement_batches,
            self.arrangement_retraction_multiplier,
        )


def check_level_rules(
    level_rows: tuple[int, ...], merge_min: tuple[int, ...], merge_max: int, batches: int, multiplier: int
) -> None:
    """Raise a UsageError if arrangements cannot work by such rules: they would merge too late, or without end."""
    if not _are_integers(level_rows, LEVELS - 1, 1) or list(level_rows) != sorted(level_rows):
        raise UsageError(
            f"config arrangement_level_rows must be {LEVELS - 1} integers from 1 on that do not descend, not "
            f"{short_repr(level_rows)}"
        )
    if level_rows[0] > LEVEL0_ROWS_MAX:
        raise UsageError(f"config arrangement_level_rows begins with at most {LEVEL0_ROWS_MAX}, not {level_rows[0]}")
    if not _are_integers(merge_min, LEVELS, 2):
        raise UsageError(
            f"config arrangement_merge_min must be {LEVELS} integers from 2 on, not {short_repr(merge_min)}"
        )
    if type(merge_max) is not int or not max(merge_min) <= merge_max <= BATCHES_MAX:
        raise UsageError(
            f"config arrangement_merge_max must be an integer from {max(merge_min)} (what a level needs to merge) to "
            f"{BATCHES_MAX}, not {short_repr(merge_max)}"
        )
    waiting = sum(count - 1 for count in merge_min)
    if type(batches) is not int or not waiting < batches <= BATCHES_MAX:
        raise UsageError(
            f"config arrangement_batches must be an integer from {waiting + 1} (then some level can merge) to "
            f"{BATCHES_MAX}, not {short_repr(batches)}"
        )
    if type(multiplier) is not int or not 0 <= multiplier <= RETRACTION_MULTIPLIER_MAX:
        raise UsageError(
            f"config arrangement_retraction_multiplier must be an integer from 0 to {RETRACTION_MULTIPLIER_MAX}, not "
            f"{short_repr(multiplier)}"
        )


def _are_integers(values: object, count: int, smallest: int) -> bool:
    if type(values) is not tuple or len(values) != count:
        return False
    return all(type(each) is int and smallest <= each <= 1 << 40 for each in values)


DEFAULT = Config()
"""The configuration of a store in a folder."""

REMOTE = Config(
    inline_part_bytes=64 << 10,
    inline_total_bytes=8 << 20,
    outstanding_parts=8,
    page_rows=16_384,
    compression="zstd",
    piece_hash="sha256",
)
"""The configuration of a store whose blobs are at a remote place. There a PUT costs 20 ms and a fee: appends of up to
about 5,000 small rows go into the log alone. Uploads overlap."""


def at_remote_place(config: Config) -> Config:
    """Return a configuration with the defaults of a remote place, wherever it has those of a folder."""
    given = {each.name: getattr(config, each.name) for each in fields(Config)}
    return replace(REMOTE, **{name: value for name, value in given.items() if value != getattr(DEFAULT, name)})
