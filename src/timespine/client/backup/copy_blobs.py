"""Copy the blobs that a cut can reach, each once, and compare every byte with the hashes that states have of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from timespine.client.arguments.argument_types import Progress
from timespine.client.backup.store_cut import StoreCut
from timespine.columnar.parts.part_reader import MissingBlob, open_part
from timespine.columnar.schema.schema import decode_schema
from timespine.config import Config
from timespine.core.batch import Part
from timespine.core.encoding.codec import decode_run
from timespine.core.state import State
from timespine.errors import CorruptionError
from timespine.location.blob import Blob
from timespine.pool import Pool, outcome

THREADS = 16
"""Blobs that are copied at once, at most."""

FLIGHT_BYTES = 256 << 20
"""Bytes of blobs in memory at once, or one blob."""


@dataclass(frozen=True, slots=True)
class NeededBlob:
    """A blob that a state of a cut reaches."""

    part: Part
    """The reference to it."""
    state: State
    """The state."""
    schema: int | None
    """The id of the schema of its run."""


def reachable_blobs(cut: StoreCut, blob: Blob) -> dict[str, NeededBlob]:
    """Return the blobs that a cut reaches, by key, inside hollow runs too. A missing run is MissingBlob."""
    found: dict[str, NeededBlob] = {}
    for state in cut.states.values():
        waiting = [NeededBlob(part, state, schema) for schema, part in state.parts_with_schemas() if part.key]
        while waiting:
            needed = waiting.pop()
            key = needed.part.key
            if key in found:
                continue
            found[key] = needed
            if needed.part.hollow:
                children = decode_run(key, _read(blob, needed.part))
                waiting.extend(NeededBlob(part, state, needed.schema) for part in children if part.key)
    return found


def copy_missing(
    needed: Mapping[str, NeededBlob],
    there: Mapping[str, int],
    origin: Blob,
    target: Blob,
    config: Config,
    progress: Progress,
) -> tuple[int, int]:
    """Copy the blobs that the target lacks; return how many, and how many bytes."""
    missing = [each for key, each in needed.items() if there.get(key) != each.part.size]
    total = sum(each.part.size for each in missing)
    done = 0

    def copy(each: NeededBlob) -> int:
        data = _read(origin, each.part)
        verify_blob(each, data, config)
        if each.part.key in there:
            target.delete(each.part.key)  # of another size: it was damaged since
        target.put(each.part.key, data)
        return len(data)

    progress(0, total)
    for size in _in_flight(missing, copy):
        done += size
        progress(done, total)
    return len(missing), total


def verify_target(needed: Mapping[str, NeededBlob], target: Blob, config: Config, progress: Progress) -> None:
    """Read every blob of a cut back from the target, and compare it with its hashes."""
    total = sum(each.part.size for each in needed.values())
    done = 0

    def verify(each: NeededBlob) -> int:
        data = _read(target, each.part)
        verify_blob(each, data, config)
        return len(data)

    for size in _in_flight(list(needed.values()), verify):
        done += size
        progress(done, total)


def _in_flight(blobs: list[NeededBlob], work: Callable[[NeededBlob], int]) -> Iterator[int]:
    """Do some work for each blob, several at once within FLIGHT_BYTES; yield the results."""
    pool = Pool(THREADS, "timespine-copy", "the copy was stopped")
    running: deque[tuple[Future[int], int]] = deque()
    flying = 0
    try:
        for each in blobs:
            while running and (len(running) >= THREADS or flying + each.part.size > FLIGHT_BYTES):
                task, size = running.popleft()
                flying -= size
                yield outcome(task)
            running.append((pool.submit(work, each), each.part.size))
            flying += each.part.size
        while running:
            yield outcome(running.popleft()[0])
    finally:
        pool.shutdown()


def verify_blob(needed: NeededBlob, data: bytes, config: Config) -> None:
    """Compare the bytes of a blob with what its reference, its footer and the hashes in it say."""
    part, state = needed.part, needed.state
    if part.hollow:
        decode_run(part.key, data)
        return
    if needed.schema is None or not 0 <= needed.schema < len(state.schemas):
        raise CorruptionError(f"part {part.key} is in a run with schema {needed.schema}, which is not known")
    schema = decode_schema(state.schemas[needed.schema])

    def fetch(start: int, stop: int) -> bytes:
        return data[start:stop]

    open_part(part, state.collection, schema, needed.schema, fetch, config).verify()


def _read(blob: Blob, part: Part) -> bytes:
    """Read a whole blob, which must have the size that its reference says."""
    data = blob.get(part.key, max_bytes=max(part.size, 1))
    if data is None:
        raise MissingBlob(part.key)
    if len(data) != part.size:
        raise CorruptionError(f"blob {part.key} has {len(data)} bytes, not {part.size}")
    return data
