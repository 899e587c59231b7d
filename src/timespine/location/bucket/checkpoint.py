"""Checkpoints: fold slots into packs and an index, move the base, and only then delete.

The order is the safety of all others. Packs and index are under fresh names, so no reader sees them before the base
refers to them. The base moves by If-Match, from the one whose logs the index continues, so a checkpoint that lost
changes nothing. Slots up to the checkpoint before are then dead; those after it stay, for readers that are behind.
"""

from __future__ import annotations

from collections.abc import Set

from timespine.errors import CorruptionError, Determinate, Unavailable
from timespine.location.bucket.effects import (
    DeleteObjects,
    GetObject,
    ListObjects,
    ObjectProtocol,
    PutIfAbsent,
    PutIfMatch,
)
from timespine.location.bucket.formats import (
    BASE_NAME,
    INDEX_PREFIX,
    LOG_PREFIX,
    PACK_PREFIX,
    Base,
    LogIndex,
    PackedEntry,
    PackStretch,
    begin_pack,
    decode_frames,
    encode_base,
    encode_frame,
    encode_index,
    fresh_name,
    slot_name,
    slot_of,
)
from timespine.location.bucket.logs import Logs
from timespine.location.bucket.replica import (
    ATTEMPTS,
    CheckpointLimits,
    Replica,
    catch_up,
    load,
    read_base,
    read_patiently,
)

DELETES = 1000
"""Objects that one request deletes, at most."""


def keep_tail_short(replica: Replica) -> ObjectProtocol[bool]:
    """Begin with the checkpoint of another process, or make one if it is due; return whether this process made one."""
    if replica.base.slot > replica.logs.index_slot:
        yield from load(replica)
    return replica.is_checkpoint_due and (yield from checkpoint(replica))


def checkpoint(replica: Replica) -> ObjectProtocol[bool]:
    """Make a checkpoint if one is due; return whether this process made one."""
    yield from catch_up(replica)
    if replica.base_tag is None or not replica.is_checkpoint_due:
        return False
    logs, base, tag = replica.logs, replica.base, replica.base_tag
    if logs.index_slot != base.slot:
        return False  # the base moved while it was read: the next call begins with it
    id = replica.fresh()
    packs = yield from build_packs(logs, replica.limits, id)
    if packs is None:
        return False
    objects, index = packs
    name = fresh_name(INDEX_PREFIX, logs.slot, id)
    for each, data in [*objects.items(), (name, encode_index(name, index))]:
        if not (yield from put_fresh(each, data)):
            return False  # the sweep removes what was put
    target = Base(logs.slot, name, base.slot)
    if not (yield from move_base(replica, target, tag)):
        return False
    replica.loaded = logs.after(index)
    yield from delete_replaced(base, target, logs.index_packs.keys() - index.packs.keys())
    return True


def build_packs(
    logs: Logs, limits: CheckpointLimits, id: bytes
) -> ObjectProtocol[tuple[dict[str, bytes], LogIndex] | None]:
    """Write the entries in memory into new packs, and those of packs that are small or mostly dead.

    Return the packs by name, and the index. None if a pack is gone: another process was faster.
    """
    carried = yield from read_carried(logs, limits)
    if carried is None:
        return None
    objects: dict[str, bytearray] = {}
    name = ""

    def place(key: str, seqno: int, entries: list[PackedEntry]) -> PackStretch:
        nonlocal name
        if not name or len(objects[name]) >= limits.pack_bytes_max:
            name = fresh_name(PACK_PREFIX, logs.slot, id, len(objects))
            objects[name] = bytearray(begin_pack(name))
        offset = len(objects[name])
        frames = [encode_frame(key, seqno + place, entry) for place, entry in enumerate(entries)]
        objects[name] += b"".join(frames)
        return PackStretch(name, seqno, offset, tuple(map(len, frames)))

    index: dict[str, tuple[PackStretch, ...]] = {}
    for key, log in sorted(logs.logs.items()):
        runs: list[PackStretch | tuple[int, list[PackedEntry]]] = []
        for stretch in log.packed:
            data = carried.get(stretch.pack)
            if data is None:
                runs.append(stretch)
            else:
                end = stretch.offset + sum(stretch.lengths)
                _extend(runs, stretch.seqno, decode_frames(key, stretch, data[stretch.offset : end]))
        _extend(runs, log.recent_seqno, log.recent)
        index[key] = tuple(run if isinstance(run, PackStretch) else place(key, *run) for run in runs)
    made = {name: bytes(data) for name, data in objects.items()}
    sizes = logs.index_packs | {name: len(data) for name, data in made.items()}
    live = {stretch.pack for stretches in index.values() for stretch in stretches}
    return made, LogIndex(logs.slot, logs.checksum, index, {name: sizes[name] for name in sorted(live)})


def _extend(runs: list[PackStretch | tuple[int, list[PackedEntry]]], seqno: int, entries: list[PackedEntry]) -> None:
    """Add entries to the last run if they follow it and are to be written too, or as a run of their own."""
    if entries:
        if runs and not isinstance(runs[-1], PackStretch):
            runs[-1][1].extend(entries)
        else:
            runs.append((seqno, list(entries)))


def read_carried(logs: Logs, limits: CheckpointLimits) -> ObjectProtocol[dict[str, bytes] | None]:
    """Read the packs whose live entries are to be written again; None if one is gone."""
    found: dict[str, bytes] = {}
    carried = 0
    for name, live in sorted(logs.live_bytes().items()):
        is_worn = live < limits.pack_bytes_small or 2 * live < logs.index_packs[name]
        if live and is_worn and carried < limits.pack_bytes_max:
            carried += live
            stored = yield from read_patiently(GetObject(name))
            if stored is None:
                return None
            found[name] = stored.data
    return found


def put_fresh(name: str, data: bytes) -> ObjectProtocol[bool]:
    """Put an object under a name that only this call uses; return whether it is surely there."""
    for _ in range(ATTEMPTS):
        try:
            if (yield PutIfAbsent(name, data)):
                return True
            found = yield GetObject(name)
        except Unavailable:
            continue
        if found is not None:
            if found.data != data:
                raise CorruptionError(f"{name} has other bytes than the ones that were put")
            return True
    return False


def move_base(replica: Replica, target: Base, tag: str) -> ObjectProtocol[bool]:
    """Replace the base that has this tag; return whether it is now ours.

    What was put for a checkpoint that lost stays, for the sweep. SUBTLE: a lost reply and a retry below can report a
    loss though this checkpoint won. Another one may have followed, and refer to its packs
    (planted: a_lost_checkpoint_deletes_its_packs).
    """
    try:
        yield PutIfMatch(BASE_NAME, encode_base(target), tag)
    except Determinate:
        return False
    except Unavailable:
        pass  # the base says whether it happened
    try:
        yield from read_base(replica)
    except Unavailable:
        return False
    return replica.base == target


def delete_replaced(old: Base, new: Base, packs: Set[str]) -> ObjectProtocol[None]:
    """Delete what the new base made superfluous: slots, the old index, and packs without live entries."""
    slots = [slot_name(slot) for slot in range(old.dead + 1, new.dead + 1)]
    yield from delete([*slots, *([old.index] if old.index else []), *sorted(packs)])


def delete(names: list[str]) -> ObjectProtocol[None]:
    """Delete objects; the sweep finds those for which that fails."""
    for start in range(0, len(names), DELETES):
        try:
            yield DeleteObjects(tuple(names[start : start + DELETES]))
        except Unavailable:
            continue


def sweep_objects(replica: Replica) -> ObjectProtocol[int]:
    """Delete what crashed processes left; return how many objects.

    An index or a pack of a slot up to that of the base, which its index does not refer to, can never be referred to:
    bases move to later slots only, and by If-Match. One of a later slot may belong to a checkpoint under way.
    """
    yield from load(replica)
    base = replica.base
    if base.slot != replica.logs.index_slot:
        return 0  # the base moved while its index was read
    names: list[str] = []
    for prefix, last, kept in (
        (LOG_PREFIX, base.dead, set[str]()),
        (INDEX_PREFIX, base.slot, {base.index}),
        (PACK_PREFIX, base.slot, set(replica.logs.index_packs)),
    ):
        listed: list[str] = yield from read_patiently(ListObjects(prefix))
        slots = {name: slot_of(name) for name in listed if name not in kept}
        names += [name for name, slot in slots.items() if slot is not None and slot <= last]
    yield from delete(sorted(names))
    return len(names)
