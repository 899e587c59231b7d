"""Large background merges run in a process of their own: the same result, and nothing is lost if it fails."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from assertions import until
from maintenance_cases import runs

import timespine as ts
from timespine import errors
from timespine.client.maintenance.merge_process import merge_process, serve_merges
from timespine.client.maintenance.merge_process.merge_messages import MergeOrder, MergeReply, read_framed
from timespine.client.maintenance.merge_process.merge_process import FAILURES_MAX, IDLE_S, MergeProcess
from timespine.columnar.kernels.background_flag import background_work
from timespine.columnar.merge.run_merge import MergeTask
from timespine.core.batch import Order, Part, Run
from timespine.model.description import Description
from timespine.model.frontier import CLOSED, Frontier

BLOBS = ts.Config(inline_part_bytes=1)
ROWS = 300
FAILED = "merges that the process failed to do"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with opened(tmp_path / "store") as made:
        made._context.monotonic = clock
        yield made


def opened(path):
    made = ts.open(path, maintenance=False, config=BLOBS)
    made._merge_process.least_rows = 1
    return made


def process(store):
    return store._merge_process._process


def fill(store, name="orders"):
    orders = store.create(name, key={"k": "int64"}, value={"v": "string"}, timeline="counter")
    for n in range(4):
        orders.upsert([{"k": k, "v": f"v{n}"} for k in range(n, ROWS, 2)])
    return orders


def merge(collection):
    with background_work():
        collection.compact(wait=True)


def by_process(store):
    return store.metrics().get("merges by process", 0)


def failed(store):
    return store.metrics().get(FAILED, 0)


def history(collection):
    return [collection.snapshot(as_of=time).to_pylist() for time in range(4)]


def check_merged_here(store):
    """Merge a collection, which the process fails to do."""
    orders = fill(store)
    expected = history(orders)
    merge(orders)
    assert failed(store) == 1
    assert history(orders) == expected


def test_a_merge_of_the_process_is_that_of_the_library(store):
    here, there = fill(store, "here"), fill(store, "there")
    here.compact(wait=True)
    assert by_process(store) == 0  # a caller waits for it: it is not in the background
    merge(there)
    assert by_process(store) >= 1
    assert history(here) == history(there)
    assert here.inspect().rows == there.inspect().rows
    assert runs(here) == runs(there)
    counted = [store._context.counters_of(each.id) for each in (here, there)]
    kinds = [kind for kind in counted[0] if kind.startswith("merge rows")]
    assert kinds
    assert {kind: counted[0][kind] for kind in kinds} == {kind: counted[1][kind] for kind in kinds}


def test_what_is_past_and_what_was_expired_travels_too(store):
    here, there = fill(store, "here"), fill(store, "there")
    for made in (here, there):
        made.compact(wait=True)  # from here on, what is past is a run of its own
        made.upsert([{"k": k, "v": "new"} for k in range(0, ROWS, 3)])
        made.expire(before=3)
    here.compact(wait=True)
    merge(there)
    assert by_process(store) >= 1
    assert failed(store) == 0
    assert here.snapshot(as_of=3).to_pylist() == there.snapshot(as_of=3).to_pylist()
    assert here.snapshot().to_pylist() == there.snapshot().to_pylist()
    assert here.inspect().rows == there.inspect().rows


def test_times_of_two_coordinates_travel_too():
    frontier = Frontier([(0, 3), (2, 1)])
    part = Part("m/p", 10, 2, lower=Frontier([(0, 1)]), rewrite=frontier)
    work = MergeTask("c", "m", frontier, (Run((part,), Order.SORTED, 1),), lower=b"a", splits=True)
    order = MergeOrder(
        "1", "/store", (("region", "here"),), BLOBS, (b"x",), work, Description(frontier, CLOSED, frontier)
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=MergeOrder) == order


def test_one_process_does_all_merges_of_a_store_and_ends_with_it(store):
    merge(fill(store, "one"))
    first = process(store)
    merge(fill(store, "two"))
    assert process(store) is first
    assert by_process(store) >= 2
    store.close()
    assert first.returncode is not None
    assert process(store) is None


def test_a_process_that_was_silent_for_long_is_replaced(store, clock):
    merge(fill(store, "one"))
    first = process(store)
    clock.now += IDLE_S + 1
    merge(fill(store, "two"))
    assert process(store) is not first
    assert failed(store) == 0


def test_a_process_that_died_between_merges_is_replaced(store):
    merge(fill(store, "one"))
    first = process(store)
    first.kill()
    first.wait()
    merge(fill(store, "two"))
    assert by_process(store) >= 2
    assert failed(store) == 0


def dies_when_asked(monkeypatch, store):
    """Every process dies as soon as it was asked for a merge."""
    sent = merge_process.write_framed

    def send(stream, message):
        sent(stream, message)
        os.kill(process(store).pid, signal.SIGKILL)

    monkeypatch.setattr(merge_process, "write_framed", send)


def test_what_a_killed_process_does_not_merge_is_merged_here_and_its_blobs_are_swept(store, monkeypatch, tmp_path):
    orders = fill(store)
    expected = history(orders)
    dies_when_asked(monkeypatch, store)
    merge(orders)
    assert (by_process(store), failed(store)) == (0, 1)
    assert history(orders) == expected
    store.vacuum()
    parts = {part.key for batch in orders._handle.state().hollow_batches() for part in batch.parts}
    kept = {path.name for path in (tmp_path / "store").rglob("*") if path.is_file() and path.parent.name[0] == "m"}
    assert kept == {key.split("/")[-1] for key in parts}


ANSWERS = """
import os
from timespine.client.maintenance.merge_process import merge_messages

def serve(replies, parent, idle_s):
    asked = open(0, "rb", buffering=0, closefd=False)
    while True:
        merge_messages.read_framed(asked)
        os.write(replies, {reply!r})
"""


def framed(data):
    return len(data).to_bytes(8, "little") + data


REPLIES = {
    "nothing to read": framed(b""),
    "no reply": framed(msgspec.msgpack.encode([1, 2])),
    "a length of a lifetime": (1 << 61).to_bytes(8, "little"),
    "a length below zero": (-1).to_bytes(8, "little", signed=True),
    "a reply to another merge": framed(msgspec.msgpack.encode(MergeReply("m-another"))),
    "an error": framed(msgspec.msgpack.encode(MergeReply("", error="the child alone has this"))),
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_what_is_no_good_reply_lets_this_process_merge_and_after_some_it_merges_all(
    store, monkeypatch, reply, tmp_path
):
    (tmp_path / "answers.py").write_text(ANSWERS.format(reply=reply))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(merge_process, "PROGRAM", "answers")
    for n in range(FAILURES_MAX):
        orders = fill(store, f"orders{n}")
        expected = history(orders)
        merge(orders)
        assert failed(store) == n + 1
        assert history(orders) == expected
        assert process(store) is None
    merge(fill(store))
    assert (by_process(store), failed(store)) == (0, FAILURES_MAX)


def test_a_process_that_cannot_be_started_lets_this_one_merge(store, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    check_merged_here(store)


def test_a_folder_whose_name_is_no_text_is_merged_here(tmp_path):
    with opened(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")) as store:
        check_merged_here(store)


def test_a_merge_that_fails_here_too_is_no_failure_of_the_process(store, tmp_path):
    orders = fill(store)
    for part in [part for batch in orders._handle.state().hollow_batches() for part in batch.parts]:
        (path,) = (tmp_path / "store").rglob(part.key.split("/")[-1])
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
    with pytest.raises(errors.Unavailable, match="CorruptionError"):
        merge(orders)
    assert (by_process(store), failed(store), store._merge_process.failures) == (0, 0, 0)


def test_another_version_does_not_merge(monkeypatch, store):
    monkeypatch.setattr(ts, "__version__", "0.0.9")
    check_merged_here(store)


def test_a_store_that_closes_ends_a_merge_that_hangs(store, monkeypatch):
    orders = fill(store)
    expected = history(orders)
    asked, sent, failures = threading.Event(), merge_process.write_framed, []

    def send(stream, message):
        os.kill(process(store).pid, signal.SIGSTOP)
        sent(stream, message)
        asked.set()

    def hang():
        with pytest.raises(errors.Unavailable, match="closed before the merge was done"):
            merge(orders)
        failures.append(failed(store))

    monkeypatch.setattr(merge_process, "write_framed", send)
    thread = threading.Thread(target=hang)
    thread.start()
    asked.wait()
    stopped = process(store)
    store._merge_process.close()
    thread.join()
    assert stopped.returncode == -signal.SIGKILL
    assert failures == [0]
    assert history(orders) == expected


def test_only_large_background_merges_of_stores_that_others_can_open_are_taken(store, tmp_path, monkeypatch):
    monkeypatch.setattr(merge_process, "rows_in", lambda runs: runs)
    large, context = type("Work", (), {"runs": merge_process.LEAST_ROWS})(), store._context
    small = type("Work", (), {"runs": merge_process.LEAST_ROWS - 1})()
    asked = MergeProcess(context)
    assert not asked._takes(large)  # a caller waits
    with background_work():
        assert asked._takes(large)
        assert not asked._takes(small)
        for name in ("uwsgi", "", "my-program"):
            with monkeypatch.context() as patch:
                patch.setattr(sys, "executable", name)
                assert not asked._takes(large)
        with ts.open("memory://bucket") as other:
            assert not MergeProcess(other._context)._takes(large)
        with ts.open(tmp_path / "other", config=ts.Config(merge_process=False)) as other:
            assert not MergeProcess(other._context)._takes(large)


def test_what_is_no_order_gets_a_reply_too():
    assert serve_merges.reply_to(b"nonsense").error


def serving(idle_s):
    reading, writing = os.pipe()
    code = (
        "from timespine.client.maintenance.merge_process.serve_merges import serve; "
        f"serve({writing}, {os.getpid()}, {idle_s!r})"
    )
    made = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=[writing])
    os.close(writing)
    return made, open(reading, "rb")


def test_a_process_ends_by_itself_when_it_is_asked_for_nothing_or_its_input_ends():
    silent, replies = serving(0.0)
    with silent, replies:
        assert silent.wait(60) == 0
        with pytest.raises(EOFError):
            read_framed(replies)
    left, replies = serving(3600.0)
    with left, replies:
        left.stdin.close()
        assert left.wait(60) == 0


KILLED = """
import os, sys, time
import timespine as ts
from timespine.columnar.kernels.background_flag import background_work
with ts.open(sys.argv[1], maintenance=False, config=ts.Config(inline_part_bytes=1)) as store:
    store._merge_process.least_rows = 1
    orders = store.create("orders", key={"k": "int64"}, timeline="counter")
    for n in range(4):
        orders.append([{"k": n}])
    with background_work():
        orders.compact(wait=True)
    reading, writing = os.pipe()
    if os.fork() == 0:  # this child keeps the pipes to the process that merges
        os.write(writing, b".")
        time.sleep(3600)
    os.read(reading, 1)
    print(store._merge_process._process.pid, flush=True)
    time.sleep(3600)
"""


def test_a_process_ends_with_the_one_that_started_it_even_if_a_fork_keeps_the_pipe(tmp_path):
    path = tmp_path / "killed.py"
    path.write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, path, tmp_path / "store"], stdout=subprocess.PIPE, start_new_session=True
    ) as program:
        pid = int(program.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        program.kill()
        program.wait()
        until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())
        os.killpg(program.pid, signal.SIGKILL)
