"""Opening a store in a folder: who may read it, what may be a link, and which clocks are none."""

import datetime
import logging
import os

import pyarrow as pa
import pytest

import timespine as ts
from timespine.client.diagnostics.doctor import FindingKind, examine
from timespine.client.maintenance.maintenance_report import MaintenanceReport
from timespine.client.opening.open_store import accept_loss
from timespine.errors import CorruptionError, UsageError
from timespine.location.opening.folder_place import BLOBS, CONSENSUS_FILES

KEY = {"key": {"k": "int64"}, "timeline": "counter"}


@pytest.fixture
def umask():
    before = os.umask(0o002)
    yield
    os.umask(before)


def modes(root):
    found = {root.name: root.stat().st_mode & 0o777}
    for path in root.rglob("*"):
        found[path.name] = path.stat().st_mode & 0o777
    return found


def filled(root, **options):
    with ts.open(root, config=ts.Config(inline_part_bytes=1), **options) as store:
        made = store.get("c") or store.create("c", **KEY)
        made.append([{"k": 1}])
        return modes(root)


def test_a_new_store_is_for_its_owner_alone(tmp_path, umask):
    found = filled(tmp_path / "store")
    assert set(found.values()) == {0o700, 0o600}
    assert {found[name] for name in CONSENSUS_FILES} == {0o600}
    assert {found["store"], found[BLOBS]} == {0o700}


def test_a_shared_store_is_made_as_the_umask_says_and_stays_shared(tmp_path, umask):
    assert set(filled(tmp_path / "store", shared=True).values()) == {0o775, 0o664}
    os.umask(0o077)
    (tmp_path / "store" / "consensus.db.lock").unlink()
    assert set(filled(tmp_path / "store").values()) == {0o775, 0o664}, "whoever opens it later"


@pytest.mark.parametrize(
    "reopen",
    [
        lambda root: ts.open(root, read_only=True),
        lambda root: ts.open(root, create=False),
        lambda root: ts.open(root),
        accept_loss,
    ],
    ids=["read_only", "no create", "create", "accept_loss"],
)
def test_a_store_whose_log_was_deleted_is_damaged_and_not_missing(tmp_path, reopen):
    root = tmp_path / "store"
    filled(root)
    (root / "consensus.db").unlink()
    before = modes(root)
    with pytest.raises(CorruptionError, match=r"consensus\.db is gone.*\.mark.*restore the store from a copy"):
        reopen(root)
    assert modes(root) == before
    with pytest.raises(UsageError, match="there is no store in"):
        ts.open(tmp_path / "elsewhere", read_only=True)
    with pytest.raises(UsageError, match="there is no store in"):
        accept_loss(tmp_path / "elsewhere")


@pytest.mark.parametrize("name", [BLOBS, *CONSENSUS_FILES])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_link_inside_of_a_store_is_refused_and_not_followed(tmp_path, name, read_only):
    root = tmp_path / "store"
    filled(root)
    victim = tmp_path / "victim"
    if (root / name).exists():
        (root / name).rename(victim)
    elif name != BLOBS:
        victim.write_bytes(b"")
    before = modes(victim) if victim.is_dir() else victim.read_bytes()
    (root / name).symlink_to(victim)
    with pytest.raises(CorruptionError, match="is a link"):
        ts.open(root, read_only=read_only)
    assert (modes(victim) if victim.is_dir() else victim.read_bytes()) == before


def test_the_folder_of_a_store_may_be_a_link(tmp_path):
    filled(tmp_path / "store")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with ts.open(tmp_path / "link", read_only=True) as store:
        assert store["c"].count() == 1


def test_a_link_among_the_blobs_is_left_alone_by_maintenance_and_told_by_the_doctor(tmp_path):
    root = tmp_path / "store"
    filled(root)
    (collection,) = (path for path in (root / BLOBS).iterdir() if path.name != ".tmp")
    for place in (collection / "w1", next(iter(collection.iterdir())) / "p1", root / BLOBS / "other"):
        place.symlink_to(tmp_path)
    with ts.open(root, maintenance=False) as store:
        report = store.maintain(sweep=True)
        assert report.skipped == []
        assert store["c"].count() == 1
        found = examine(store).findings
    assert [each.kind for each in found] == [FindingKind.FOREIGN] * 3
    assert all("is a link" in each.message for each in found)
    assert len([path for path in (root / BLOBS).rglob("*") if path.is_symlink()]) == 3


@pytest.mark.parametrize(
    "now",
    [float("nan"), float("inf"), -float("inf"), -1.0, 1e300, "noon", None, True, datetime.datetime.now(datetime.UTC)],
)
def test_a_clock_that_gives_no_time_is_a_usage_error(tmp_path, now):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        store.create("c", key={"k": "int64"})
    told = [1_700_000_000.0]
    with ts.open(tmp_path / "store", maintenance=False, clock=lambda: told[0]) as store:
        told[0] = now
        for call in (
            lambda: store["c"].append([{"k": 1}]),
            lambda: store["c"].append([{"k": 1}], at=7),
            lambda: store.create("d", key={"k": "int64"}),
        ):
            with pytest.raises(UsageError, match="the clock gave"):
                call()
        told[0] = 1_700_000_000.0
        assert store["c"].count() == 0
        assert store["c"].append([{"k": 1}]).rows == 1


def test_dates_that_python_does_not_have_are_a_usage_error_and_can_be_read_as_columns(tmp_path):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        made = store.create("c", key={"k": "int64"}, value={"d": "date"}, timeline="counter")
        days = pa.array([2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32())
        made.append(pa.table({"k": [1, 2], "d": days}))
        with pytest.raises(UsageError, match="to_arrow"):
            made.snapshot().to_pylist()
        assert made.lookup({"k": 1}).column("d").cast(pa.int32()).to_pylist() == [2**31 - 1]
        assert made.snapshot().to_arrow().column("d").cast(pa.int32()).to_pylist() == [2**31 - 1, -(2**31)]


@pytest.mark.parametrize(
    "column", [pa.array([2**62], pa.timestamp("s", "UTC")), pa.array([-(2**63)], pa.timestamp("us", "UTC"))]
)
def test_times_from_a_column_that_are_no_milliseconds_are_a_usage_error(tmp_path, column):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        made = store.create("c", key={"k": "int64"})
        with pytest.raises(UsageError, match="milliseconds"):
            made.write(pa.table({"k": [1], "t": column}), times="t")


def test_a_condition_is_told_once_for_as_long_as_it_holds(caplog):
    report = MaintenanceReport()
    with caplog.at_level(logging.WARNING, "timespine.maintenance"):
        for size in range(36):
            report.skip(f"no room for {size} bytes", "no space")
        report.skip("something else")
        report.reported.discard("no space")
        report.skip("no room again", "no space")
    assert [record.message for record in caplog.records] == ["no room for 0 bytes", "something else", "no room again"]
    assert report.failures == 38
