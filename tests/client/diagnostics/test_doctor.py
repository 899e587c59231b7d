"""The doctor finds whatever is not as it was written, names it, changes nothing, and does not mind maintenance."""

import shutil
from pathlib import Path

import pytest

import timespine as ts
from timespine.client.diagnostics import doctor
from timespine.client.diagnostics.doctor import FindingKind, examine
from timespine.core.protocols import maintain
from timespine.errors import CorruptionError, Determinate, UsageError

BLOBS = ts.Config(part_bytes=2000, row_group_rows=16, inline_part_bytes=1, run_parts=2)
"""Nothing inline, and runs of several parts, so that there are files of every kind."""


def rows(start, count):
    return [{"id": i, "name": f"name {i}"} for i in range(start, start + count)]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A store with two collections in files: parts, hollow runs, rollups."""
    root = tmp_path_factory.mktemp("doctor") / "store"
    with ts.open(root, maintenance=False, config=BLOBS) as store:
        for name in ("orders", "others"):
            made = store.create(name, key={"id": "int64"}, value={"name": "string"}, timeline="counter")
            made.append(rows(0, 200))
            made.append(rows(200, 150))
        store.maintain("orders")
    return root


@pytest.fixture
def folder(original, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "store"))


def examined(folder, *names, **options):
    with ts.open(folder, read_only=True, config=BLOBS) as store:
        return examine(store, *names, **options)


def keys(folder, name, *, hollow):
    with ts.open(folder, read_only=True, config=BLOBS) as store:
        handle = store[name]._handle
        state = handle.state()
        direct = [part for part in state.parts() if part.hollow]
        leaves = list(handle.parts(state).leaves(state.parts()))
        return [part.key for part in (direct if hollow else leaves)]


def rollup_key(folder, name):
    with ts.open(folder, read_only=True, config=BLOBS) as store:
        return max(store[name]._handle.state().rollups.items())[1].key


def path_of(folder, key) -> Path:
    return folder / "blobs" / key


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0x40
    path.write_bytes(data)


def the_finding(report):
    assert not report.is_sound
    (found,) = report.findings
    return found


def test_a_store_that_is_as_it_was_written_is_sound(folder):
    report = examined(folder)
    assert report.is_sound
    assert report.collections == 2
    assert report.parts > 4
    assert report.runs > 0
    assert report.rollups > 0
    assert report.bytes > 5_000


def test_only_the_collections_that_are_named_are_looked_at(folder):
    path_of(folder, keys(folder, "others", hollow=False)[0]).unlink()
    assert examined(folder, "orders").is_sound
    assert not examined(folder, "others").is_sound
    with pytest.raises(UsageError, match="there is no collection nope"):
        examined(folder, "nope")


def test_a_flipped_byte_is_found_wherever_it_is(folder):
    key = keys(folder, "orders", hollow=False)[1]
    path = path_of(folder, key)
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 211), len(whole) - 1]:
        flip(path, place)
        found = the_finding(examined(folder, "orders"))
        assert (found.kind, found.what, found.key, found.collection) == (FindingKind.DAMAGED, "part", key, "orders"), (
            place
        )
        path.write_bytes(whole)
    assert examined(folder).is_sound


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: b"", lambda data: data + b"x"])
def test_a_part_of_another_length_is_found(folder, change):
    key = keys(folder, "orders", hollow=False)[0]
    path = path_of(folder, key)
    path.write_bytes(change(path.read_bytes()))
    found = the_finding(examined(folder))
    assert (found.kind, found.key) == (FindingKind.DAMAGED, key)


def test_two_parts_that_changed_places_are_found(folder):
    first, second = (path_of(folder, key) for key in keys(folder, "orders", hollow=False)[:2])
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    assert len(examined(folder).findings) == 2


def test_a_missing_part_is_found(folder):
    key = keys(folder, "orders", hollow=False)[-1]
    path_of(folder, key).unlink()
    found = the_finding(examined(folder))
    assert (found.kind, found.what, found.key) == (FindingKind.MISSING, "part", key)


def test_a_hollow_run_that_is_damaged_or_missing_is_found(folder):
    key = keys(folder, "orders", hollow=True)[0]
    flip(path_of(folder, key), 20)
    found = the_finding(examined(folder))
    assert (found.kind, found.what, found.key) == (FindingKind.DAMAGED, "hollow run", key)
    path_of(folder, key).unlink()
    found = the_finding(examined(folder))
    assert (found.kind, found.what, found.key) == (FindingKind.MISSING, "hollow run", key)


def test_a_rollup_that_is_damaged_or_missing_is_found(folder):
    key = rollup_key(folder, "orders")
    flip(path_of(folder, key), 100)
    report = examined(folder)
    assert {found.collection for found in report.findings} == {"orders"}
    assert report.findings[0].kind is FindingKind.DAMAGED
    assert report.collections == 2
    path_of(folder, key).unlink()
    assert "rollup" in the_finding(examined(folder)).message


def test_an_old_rollup_of_another_state_is_found(folder):
    with ts.open(folder, create=False, maintenance=False, config=BLOBS) as store:
        store["others"].append(rows(900, 5))
        handle = store["others"]._handle
        for _ in range(2):
            store["others"].append(rows(950, 5))
            store._upkeep.run(handle.id, lambda session: maintain.roll_up(session, handle.id))
        old, new = (path_of(folder, rollup.key) for _, rollup in sorted(handle.state().rollups.items())[-2:])
    old.write_bytes(new.read_bytes())
    found = the_finding(examined(folder, "others"))
    assert (found.kind, found.what) == (FindingKind.DAMAGED, "rollup")


def test_a_log_that_cannot_be_replayed_is_found_and_the_others_are_looked_at(folder, monkeypatch):
    real = doctor.load_state

    def load(session, id):
        if id.startswith("orders"):
            raise CorruptionError("the log of orders has gaps")
        return real(session, id)

    monkeypatch.setattr(doctor, "load_state", load)
    report = examined(folder)
    found = the_finding(report)
    assert (found.kind, found.what, found.collection) == (FindingKind.DAMAGED, "log", "orders")
    assert report.parts > 2


def test_a_collection_in_the_catalog_without_a_log_is_found(folder, monkeypatch):
    def nothing(session, id):
        return None
        yield

    monkeypatch.setattr(doctor, "load_state", nothing)
    assert {found.what for found in examined(folder).findings} == {"log"}


def test_a_damaged_catalog_is_found(folder, monkeypatch):
    def damaged(self, *, hidden):
        raise CorruptionError("the catalog of the store is damaged")

    monkeypatch.setattr(ts.Store, "names", damaged)
    assert the_finding(examined(folder)).what == "catalog"


def test_inline_data_is_decoded(tmp_path, monkeypatch):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        store.create("tiny", key={"id": "int64"}, timeline="counter").append([{"id": 1}])
        report = examine(store)
        assert report.is_sound
        assert (report.inline, report.parts) == (1, 0)

        def damaged(*_):
            raise CorruptionError("inline data is not a record batch")

        monkeypatch.setattr(doctor, "decode_inline", damaged)
        assert the_finding(examine(store)).what == "inline part"


def test_a_disk_that_does_not_answer_is_a_finding_and_not_the_end(folder):
    key = keys(folder, "orders", hollow=False)[0]
    with ts.open(folder, create=False, maintenance=False, config=BLOBS) as store:
        blob = store._context.blob
        real = blob.get_range

        def get_range(asked, start, stop):
            if asked == key:
                raise Determinate(f"cannot read blob {asked}: input/output error")
            return real(asked, start, stop)

        blob.get_range = get_range
        found = the_finding(examine(store))
    assert (found.kind, found.key) == (FindingKind.UNREADABLE, key)


def test_what_maintenance_removes_meanwhile_is_no_damage(folder):
    """Everything is merged and collected right after the first part was looked at."""
    with (
        ts.open(folder, create=False, maintenance=False, config=BLOBS) as store,
        ts.open(folder, create=False, maintenance=False, config=BLOBS) as other,
    ):
        before = set(keys(folder, "orders", hollow=False))
        told = []

        def progress(done, total):
            if not told:
                other["orders"].append(rows(0, 200))
                other["orders"].expire(before=2)
                other["orders"].compact(wait=True)
                for _ in range(2):
                    other["orders"].append(rows(0, 1))
                    other.maintain("orders")
            told.append((done, total))

        report = examine(store, "orders", progress=progress)
    assert report.is_sound
    assert not all(path_of(folder, key).exists() for key in before)
    assert all(done <= total for done, total in told)
    assert told[-1][0] == report.bytes


def test_the_doctor_changes_nothing(folder):
    def states():
        with ts.open(folder, read_only=True, config=BLOBS) as store:
            return [store[name]._handle.state().seqno for name in store.names()]

    before = states()
    files = {path: path.stat().st_mtime_ns for path in (folder / "blobs").rglob("*") if path.is_file()}
    examined(folder)
    assert states() == before
    assert {path: path.stat().st_mtime_ns for path in (folder / "blobs").rglob("*") if path.is_file()} == files


def test_a_log_that_went_back_is_told_by_rollups_that_are_ahead_of_it(place):
    store = place.open(config=BLOBS)
    made = store.create("orders", key={"id": "int64"}, value={"name": "string"}, timeline="counter")
    made.append(rows(0, 10))
    log = place.consensus._logs[made.id].entries
    before = len(log)
    made.append(rows(10, 10))
    made._handle.committer.run(made.id, lambda session: maintain.roll_up(session, made.id))
    assert examine(place.open(config=BLOBS, read_only=True)).is_sound
    del log[before:]
    (found,) = examine(place.open(config=BLOBS, read_only=True)).findings
    assert (found.collection, found.kind, found.what) == ("orders", FindingKind.DAMAGED, "log")
    assert "lost entries" in found.message


def test_blobs_without_a_catalog_tell_that_it_was_lost(place):
    assert examine(place.open(read_only=True)).is_sound
    store = place.open(config=BLOBS)
    store.create("orders", key={"id": "int64"}, timeline="counter").append([{"id": 1}])
    place.consensus._logs.clear()
    (found,) = examine(place.open(read_only=True)).findings
    assert (found.kind, found.what) == (FindingKind.DAMAGED, "catalog")
