"""A store that is open for reading only: it reads everything, says no to every change, and leaves no trace."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import calls
import pytest
from memory_store import BLOBS, QUICK

import timespine as ts
from timespine.client.maintenance.maintenance import EXPIRE_S
from timespine.errors import LeaseExpired, SinceError, UsageError

KEY = {"id": "int64"}
VALUE = {"name": "string"}


def fill(store):
    """Collections with rows inline and in blobs, merged and not, with holds, in both time lines."""
    orders = store.create("orders", key=KEY, value=VALUE, timeline="counter")
    for n in range(6):
        orders.upsert([{"id": n % 4, "name": f"v{n}"}])
    orders.append([{"id": 100 + n, "name": "bulk" * 20} for n in range(500)])
    orders.compact(wait=True)
    orders.upsert([{"id": 1, "name": "last"}])
    orders.critical_hold("backup", 0)
    store.create("events", key=KEY, retain="7 days").append([{"id": 1}])
    return orders


def read(store):
    """Everything that there is to read."""
    orders = store["orders"]
    assert sorted(store.names()) == ["events", "orders"]
    assert "orders" in store
    found = [
        orders.count(),
        orders.count(as_of=3),
        orders.snapshot().to_pylist(),
        orders.snapshot(2).to_pylist(),
        [batch.num_rows for batch in orders.snapshot().batches()],
        sum(len(piece.to_pylist()) for piece in orders.snapshot().split(3)),
        orders.changes(2).to_pylist(),
        orders.changes(2, images=True).to_pylist(),
        orders.updates().to_arrow().num_rows,
        [(event.kind, event.upper, event.rows.num_rows) for event in orders.listen().poll()],
        orders.lookup({"id": 1}).to_pylist(),
        orders.history(),
        (orders.since, orders.upper, orders.schema),
        store["events"].snapshot().to_pylist(),
        store.vacuum(),
    ]
    store.metrics()
    orders.inspect(parts=True)
    return found


def refused(tmp_path):
    """Every call that changes something, with a name for people."""
    for name, each in calls.of_store(tmp_path)[0].items():
        yield from ((f"store.{name}", call) for call in each)
    for name, each in calls.of_collection()[0].items():
        yield from ((name, lambda store, call=call: call(store["orders"])) for call in each)


def answered(tmp_path):
    """Every call that only reads."""
    for name, each in calls.of_store(tmp_path)[1].items():
        yield from ((f"store.{name}", call) for call in each)
    for name, each in calls.of_collection()[1].items():
        yield from ((name, lambda store, call=call: call(store["orders"])) for call in each)


class OnlyBlobs:
    """Blobs of somebody who may look at them, and no more."""

    def __init__(self, inner):
        self.get, self.get_range, self.list_keys, self.close = (
            inner.get,
            inner.get_range,
            inner.list_keys,
            inner.close,
        )

    def _refuse(self, *_):
        raise PermissionError("these credentials cannot write")

    put = delete = _refuse


class OnlyLogs:
    """The same of logs."""

    def __init__(self, inner):
        self.head, self.scan, self.list_keys, self.close = inner.head, inner.scan, inner.list_keys, inner.close

    def _refuse(self, *_):
        raise PermissionError("these credentials cannot write")

    compare_and_set = truncate = _refuse


def everything(place):
    """All bytes of a place: blobs and logs."""
    logs = {key: place.consensus.scan(key) for key in sorted(place.consensus._logs)}
    return logs, {key: place.blob.get(key) for key in place.blobs()}


def test_every_read_gives_what_a_store_that_is_open_for_writing_gives(place):
    fill(place.open(config=QUICK))
    with place.open(read_only=True) as reading, place.open() as writing:
        assert read(reading) == read(writing)


def test_no_method_of_a_store_or_a_collection_is_forgotten_here(tmp_path):
    assert calls.missing(tmp_path) == [set(), set()]


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
def test_everything_is_read_with_credentials_that_cannot_write(place, tmp_path, config):
    with place.open(config=config) as store:
        fill(store)
        expected = [(name, str(call(store))) for name, call in answered(tmp_path) if not name.startswith("store.")]
    blob, consensus = OnlyBlobs(place.blob), OnlyLogs(place.consensus)
    with place.open(read_only=True, blob=blob, consensus=consensus, config=config, maintenance=True) as reading:
        found = [(name, str(call(reading))) for name, call in answered(tmp_path)]
        assert [each for each in found if not each[0].startswith(("store.", "inspect"))] == [
            each for each in expected if each[0] != "inspect"
        ]
        reading.metrics()
        place.clock.advance(10 * EXPIRE_S)
        reading._heartbeat_thread.heartbeat_once()
        for _, call in refused(tmp_path):
            with pytest.raises(UsageError, match="open for reading only"):
                call(reading)


@pytest.mark.parametrize("config", [QUICK, BLOBS], ids=["inline", "blobs"])
def test_every_verb_that_changes_something_is_refused_and_nothing_is_written(place, tmp_path, config):
    with place.open(config=config) as store:
        fill(store)
    before = everything(place)
    reading = place.open(read_only=True, config=config)
    for name, call in refused(tmp_path):
        with pytest.raises(UsageError, match="open for reading only"):
            call(reading)
        assert everything(place) == before, name
    read(reading)
    place.clock.advance(10 * EXPIRE_S)
    reading._heartbeat_thread.heartbeat_once()
    reading.close()
    assert everything(place) == before


def tree(root):
    """Every file and folder below a folder: its kind, its bytes, when it was changed."""
    found = {}
    for path in sorted(root.rglob("*")):
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        found[str(path.relative_to(root))] = (content, path.stat().st_mtime_ns)
    return found


def test_nothing_appears_in_the_folder_and_nothing_in_it_changes(tmp_path):
    root = tmp_path / "store"
    with ts.open(root, maintenance=False) as store:
        fill(store)
    before = tree(root)
    with ts.open(root, read_only=True) as store:
        read(store)
        for _, call in refused(tmp_path):
            with pytest.raises(UsageError, match="open for reading only"):
                call(store)
        assert tree(root) == before
    assert tree(root) == before


def test_a_feed_is_refused_and_says_what_to_do_instead(place):
    fill(place.open())
    with pytest.raises(UsageError, match=r"open for reading only.*changes\(after=...\) now and then instead"):
        place.open(read_only=True)["orders"].subscribe()


def test_a_folder_for_blobs_that_is_not_there_is_not_made(tmp_path):
    with ts.open(tmp_path / "store", maintenance=False) as store:
        store.create("tiny", key=KEY, timeline="counter").append([{"id": 1}])
    shutil.rmtree(tmp_path / "store" / "blobs")
    before = tree(tmp_path)
    with ts.open(tmp_path / "store", read_only=True) as store:
        assert store["tiny"].snapshot().to_pylist() == [{"id": 1}]
        assert tree(tmp_path) == before
    assert tree(tmp_path) == before


AS_NOBODY = """
import os, sys
import timespine as ts
# All that is imported on first use, and that a user without rights could not load later.
import pandas, polars, pyarrow.compute, pyarrow.dataset, pyarrow.parquet
loaded = [getattr(ts, name) for name in ts.__all__]
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
assert not os.access(sys.argv[1], os.W_OK)
with ts.open(sys.argv[1], read_only=True) as store:
    assert store.description("orders").upper == store["orders"].upper
    assert store["orders"].inspect(parts=True).batches
    assert store["orders"].changes(2).to_arrow().num_rows and store["orders"].snapshot(2).to_pylist()
    for line in sys.stdin:
        print(store["orders"].lookup({"id": int(line)}).to_pylist(), store["orders"].count(), flush=True)
"""


@pytest.fixture
def guarded():
    """A store in a folder in which only its owner may change anything, and anybody may look at everything."""
    with tempfile.TemporaryDirectory(prefix="timespine-") as folder:
        root = Path(folder) / "store"
        with ts.open(root, maintenance=False) as store:
            fill(store)
        Path(folder).chmod(0o755)
        allow(root, 0o555, 0o444)
        yield root
        allow(root, 0o755, 0o644)


def allow(root, folders, files):
    for path in [root, *root.rglob("*")]:
        path.chmod(folders if path.is_dir() else files)


def test_a_folder_without_the_right_to_write_is_read_also_while_its_owner_writes(guarded):
    before = tree(guarded)
    command = [sys.executable, "-c", AS_NOBODY, str(guarded)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

        def asked(id):
            child.stdin.write(f"{id}\n")
            child.stdin.flush()
            return child.stdout.readline()

        assert asked(1) == "[{'id': 1, 'name': 'last'}] 504\n"
        assert tree(guarded) == before
        allow(guarded, 0o755, 0o644)  # the owner may write, also where root is one like any other
        with ts.open(guarded, maintenance=False) as store:
            store["orders"].upsert([{"id": 1, "name": "newer"}])
            assert asked(1) == "[{'id': 1, 'name': 'newer'}] 504\n"
            store["orders"].upsert([{"id": 7, "name": "added"}])
        assert asked(7) == "[{'id': 7, 'name': 'added'}] 505\n"
        child.stdin.close()
        assert child.wait(60) == 0


def test_a_reader_without_a_lease_sees_what_is_committed_meanwhile(place):
    orders = fill(place.open(config=BLOBS))
    reading = place.open(read_only=True)["orders"]
    orders.upsert([{"id": 1, "name": "newer"}])
    assert reading.lookup({"id": 1}).to_pylist() == [{"id": 1, "name": "newer"}]
    assert reading.upper == orders.upper


def test_a_reader_without_a_lease_holds_up_no_process_and_never_gets_other_rows(place):
    store = place.open(config=BLOBS)
    orders = fill(store)
    reading = place.open(read_only=True)["orders"]
    now, early = reading.snapshot(), reading.snapshot(2)
    expected = orders.snapshot().to_arrow()
    (token,) = [hold.token for hold in orders._handle.state().holds.values()]
    orders.critical_hold("backup", token=token).release()
    orders.expire(before=99)
    for _ in range(2):
        orders.compact(wait=True)
        store.maintain(sweep=True)
    assert now.to_arrow() == expected  # planned again: the time can still be read
    with pytest.raises((LeaseExpired, SinceError)):
        early.to_arrow()
