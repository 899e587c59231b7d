"""One process of a machine commits the small appends of all: exactly once, whatever becomes of requests and replies."""

import contextlib
import os
import socket
import sys
import threading

import pyarrow as pa
import pytest
from damaged_bytes import flipped, truncated
from msgspec import msgpack

import timespine as ts
from timespine.client.commit import relay
from timespine.client.commit.leader_queue import PendingCall
from timespine.client.write.group_small_appends import pending_append
from timespine.client.write.small_appends.relay_messages import SmallAppends, decode_reply, encode_reply
from timespine.client.write_results import CommitResult
from timespine.core.encoding.envelope import EnvelopeKind, wrap_payload
from timespine.core.transitions import ExpireCommitter
from timespine.errors import Determinate, Fenced, Indeterminate, InvalidRows, WrongProcess

KEY, VALUE = {"id": "int64"}, {"note": "string"}


@pytest.fixture(params=["counter", "clock"])
def pair(tmp_path, monkeypatch, request):
    """Two stores of one folder, of which the first appends for the second from the start."""
    monkeypatch.setattr(relay, "LOSSES", 0)
    monkeypatch.setattr(relay, "OWN_COMMITTERS", 0)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(ts.open(tmp_path, maintenance=False))
        log = first.create("log", key=KEY, value=VALUE, timeline=request.param)
        log.append(row(-1))
        log.append(row(-2))
        assert first._committer.relay._is_appender
        second = stack.enter_context(ts.open(tmp_path, maintenance=False))
        second._committer.relay._channel._answer_s = 600.0  # a busy machine is no reason to be in doubt
        yield first, second


def row(id):
    return [{"id": id, "note": "x"}]


def ids(store):
    return sorted(each["id"] for each in store["log"].snapshot().to_pylist() if each["id"] >= 0)


def counted(store, name):
    return store._committer.counters.get(name, 0)


def asks(store, ask):
    """Replace how a store asks the other one."""
    channel = store._committer.relay._channel
    real = channel.ask
    channel.ask = lambda request: ask(real, request)
    return real


def test_appends_of_the_second_store_are_commits_of_the_first(pair):
    first, second = pair
    log = second["log"]
    own = second._committer.counters.get("commits", 0)
    done = [log.append(row(n)) for n in range(20)]
    assert counted(second, "handed over") == 20
    assert second._committer.counters.get("commits", 0) <= own + 1, "the registration"
    assert ids(first) == ids(second) == list(range(20))
    assert [each.seqno for each in done] == list(range(done[0].seqno, done[0].seqno + 20))
    for number, each in enumerate(done):
        assert each.rows == 1
        assert number in {found["id"] for found in log.snapshot(as_of=each.time).to_pylist()}
        assert each.upper == ts.Frontier.at(each.time + 1)
        assert number not in {found["id"] for found in log.snapshot(as_of=each.time - 1).to_pylist()}


def test_the_second_store_commits_by_itself_once_the_first_is_closed(pair):
    first, second = pair
    second["log"].append(row(0))
    first.close()
    for n in range(1, 5):
        second["log"].append(row(n))
    assert ids(second) == list(range(5))
    assert second._committer.counters["handed over"] == 1


def test_a_reply_that_is_lost_is_found_in_the_state(pair):
    first, second = pair
    log, told = second["log"], []

    def ask(real, request):
        told.append(decode_reply(real(request)).results[0])
        raise Indeterminate("the reply was lost")

    asks(second, ask)
    done = log.append(row(0))
    assert (done.time, done.upper.time, done.rows, done.seqno) == told[0]
    assert ids(second) == [0]
    assert counted(second, "looked for after a lost reply") == 1
    assert log.append(row(1)).seqno > done.seqno
    assert ids(first) == [0, 1]


def test_a_request_that_is_lost_is_committed_once_and_refused_when_it_comes_late(pair):
    first, second = pair
    log, late = second["log"], []

    def ask(real, request):
        late.append(request)
        raise Indeterminate("the request was lost")

    asks(second, ask)
    log.append(row(0))
    assert ids(first) == [0]
    reply = decode_reply(first._committer.relay._answer(late[0]))
    assert reply.outcome == "in doubt"
    assert ids(first) == [0]


def test_a_request_that_comes_twice_is_committed_once(pair):
    first, second = pair
    requests = []

    def ask(real, request):
        requests.append(request)
        return real(request)

    asks(second, ask)
    second["log"].append(row(0))
    reply = decode_reply(first._committer.relay._answer(requests[0]))
    assert (reply.outcome, ids(first)) == ("in doubt", [0])


def test_neighbours_of_a_stale_request_are_committed(pair):
    first, second = pair
    answer, requests, others = first._committer.relay._answer, [], []
    asks(second, lambda real, request: requests.append(request) or real(request))
    second["log"].append(row(0))
    real = first._committer._queue.offer

    def offer(item, lead):
        """Queue an append of the first store while the stale request is staged."""
        if not others:
            others.append(None)
            group = [_call(item), _call(_pending(first, 1))]
            first._committer._lead(group)
            others[0] = group[1].reply
            return group[0].answer()
        return real(item, lead)

    first._committer._queue.offer = offer
    assert decode_reply(answer(requests[0])).outcome == "in doubt"
    first._committer._queue.offer = real
    assert others[0] == (row(1),), "its own thread commits it"
    assert ids(first) == [0]


def _call(item):
    return PendingCall(item, sys._getframe())


def _pending(store, id):
    return pending_append(store["log"]._handle, row(id))


def test_what_is_in_doubt_and_cannot_be_looked_for_is_said_to_be_in_doubt(pair, monkeypatch):
    _, second = pair
    log = second["log"]
    log.append(row(0))

    def ask(real, request):
        real(request)
        monkeypatch.setattr(second._committer, "commit_alone", unavailable)
        raise Indeterminate("the reply was lost")

    def unavailable(transaction):
        raise Determinate("storage is away")

    asks(second, ask)
    with pytest.raises(Indeterminate, match="storage is away"):
        log.append(row(1))
    monkeypatch.undo()
    log.append(row(2))
    assert ids(second) == [0, 1, 2]


def test_a_committer_that_was_expired_meanwhile_is_in_doubt(pair):
    first, second = pair
    log = second["log"]
    log.append(row(0))

    def ask(real, request):
        first._committer.commit((log.id, ExpireCommitter(second._committer.session.committer)))
        raise Indeterminate("the request was lost")

    asks(second, ask)
    with pytest.raises(Fenced, match="no longer registered") as told:
        log.append(row(1))
    assert told.value.in_doubt
    assert log.append(row(2)).rows == 1
    assert ids(first) == [0, 2]


def test_a_store_that_paused_and_was_expired_commits_by_itself_and_then_hands_over_again(pair):
    first, second = pair
    log = second["log"]
    log.append(row(0))
    paused = second._committer.session.committer
    real = second._committer.driver._clock
    second._committer.driver._clock = lambda: real() + 2 * 3600
    first._committer.commit((log.id, ExpireCommitter(paused)))
    for n in range(1, 4):
        log.append(row(n))
    assert ids(first) == [0, 1, 2, 3]
    assert second._committer.session.committer != paused
    assert counted(second, "looked for after a lost reply") == 0
    assert counted(second, "handed over") == 3, "all but the first after the pause"


def test_rows_that_do_not_fit_are_the_error_of_their_caller(pair):
    _, second = pair
    log = second["log"]
    with pytest.raises(InvalidRows):
        log.append([{"id": "seven", "note": "x"}])
    with pytest.raises(InvalidRows):
        log.append([{"id": 1, "other": 5}])
    second._committer.relay._apart_until = 0.0
    log.append(row(1))
    assert ids(second) == [1]


def test_rows_that_only_their_own_process_can_convert_stay_there(pair):
    _, second = pair
    log = second["log"]
    log.append(row(0))
    asks(second, lambda real, request: pytest.fail("it was sent"))
    log.append(pa.table({"id": [1], "note": ["x"]}))
    with pytest.raises(InvalidRows):
        log.append([{"id": 1 << 70, "note": "x"}])
    assert ids(second) == [0, 1]


def test_a_schema_that_the_other_process_does_not_know_is_left_to_the_own_one(pair):
    first, second = pair
    log = second["log"]
    log.append(row(0))
    first["log"].evolve(add={"more": "int64"})
    requests = []
    asks(second, lambda real, request: requests.append(request) or real(request))
    log.append(row(1))
    assert len(requests) == 1
    assert counted(second, "not handed over") == 1
    assert ids(second) == [0, 1]


def sealed(*fields):
    """Fields in the envelope of a request."""
    return wrap_payload(EnvelopeKind.APPEND_REQUEST, msgpack.encode(fields))


def of(log, *appends):
    """The fields of a request to append to a collection."""
    return log, 0, "k", 1, "w", appends


DEEP = msgpack.encode(of("c", [{"id": 7}])).replace(b"\x07", b"\x91" * 100_000 + b"\x01")


@pytest.mark.parametrize(
    "request_to",
    [
        lambda log: b"",
        lambda log: b"\xff" * 100,
        lambda log: msgpack.encode(of(log, row(1))),
        lambda log: wrap_payload(EnvelopeKind.APPEND_REQUEST, b""),
        lambda log: wrap_payload(EnvelopeKind.APPEND_REQUEST, msgpack.encode({"collection": log})),
        lambda log: wrap_payload(EnvelopeKind.APPEND_REQUEST, msgpack.encode(of(log, row(1))), version=2),
        lambda log: wrap_payload(EnvelopeKind.APPEND_REQUEST, DEEP),
        lambda log: wrap_payload(EnvelopeKind.APPEND_REPLY, msgpack.encode(of(log, row(1)))),
        lambda log: sealed(*of("../c", row(1))),
        lambda log: sealed(*of(log, [{"id": 1, "note": ["nested"]}])),
        lambda log: sealed(*of(log, [{"id": n, "note": "x"} for n in range(65)])),
        lambda log: sealed(*of(log, [{"id": 1}, {"note": "x"}])),
        lambda log: sealed(*of(log, row(1)), "more"),
    ],
)
def test_bytes_that_are_no_request_get_a_refusal_and_change_nothing(pair, request_to):
    first, _ = pair
    log = first["log"]
    before = log._handle.state().seqno
    reply = decode_reply(first._committer.relay._answer(request_to(log.id)))
    assert (reply.outcome, reply.results) == ("refused", [])
    assert reply.reason
    assert log._handle.state().seqno == before


def test_every_damaged_byte_and_every_truncation_of_a_request_is_refused_and_the_request_still_counts(pair):
    first, second = pair
    log, answer, told = second["log"], first._committer.relay._answer, []

    def ask(real, request):
        before = first["log"]._handle.state().seqno
        for damaged in (*flipped(request), *truncated(request), request + b"\0"):
            told.append(decode_reply(answer(damaged)))
        told.append(first["log"]._handle.state().seqno - before)
        return real(request)

    asks(second, ask)
    log.append(row(0))
    *replies, commits = told
    assert len(replies) > 255 * 100
    assert {(each.outcome, *each.results) for each in replies} == {("refused",)}
    assert (commits, ids(first), counted(second, "handed over")) == (0, [0], 1)


def test_every_damaged_byte_of_a_request_on_the_socket_changes_nothing(pair):
    first, second = pair
    path, told = first._committer.relay._channel._path_of_socket, []

    def ask(real, request):
        before = first["log"]._handle.state().seqno
        frame = len(request).to_bytes(4, "big") + request
        for damaged in (*flipped(frame, range(1, 256, 85)), *truncated(frame)):
            told.append(outcomes(sent(path, damaged)))
        told.append(first["log"]._handle.state().seqno - before)
        return real(request)

    asks(second, ask)
    second["log"].append(row(0))
    *replies, commits = told
    assert len(replies) > 300
    assert {outcome for each in replies for outcome in each} == {"refused"}
    assert (commits, ids(first), counted(second, "handed over")) == (0, [0], 1)


def sent(path, data):
    """Connect to a channel, send bytes and no more, and return what it sends until it ends the connection."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(600)
        connection.connect(path)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(ConnectionResetError):  # it did not read all
            while some := connection.recv(1 << 16):
                found += some
        return found


def outcomes(data):
    """The outcomes of the replies in what a channel sent."""
    frames = []
    while len(data) >= 4:
        size = int.from_bytes(data[:4], "big")
        frames.append(data[4 : 4 + size])
        data = data[4 + size :]
    return [decode_reply(each).outcome for each in frames[1:]]  # the first one says hello


@pytest.mark.parametrize("outcome", ["committed", "declined", "in doubt", "refused"])
def test_every_damaged_byte_and_every_truncation_of_a_reply_leaves_its_request_in_doubt(pair, outcome):
    _, second = pair
    log = second["log"]
    log.append(row(0))
    results = [CommitResult(7, ts.Frontier.at(8), 1, 9)] if outcome == "committed" else []
    reply = encode_reply(outcome, results, "a reason")
    group = [_call(_pending(second, 1))]
    waiting = SmallAppends(log._handle, group)
    for damaged in (*flipped(reply), *truncated(reply), reply + b"\0"):
        with pytest.raises(Indeterminate):
            waiting.accept(damaged)
    assert not group[0].is_done


def test_appends_whose_replies_are_damaged_anywhere_are_committed_once(pair):
    first, second = pair
    log, damages, place = second["log"], {}, 0
    asks(second, lambda real, request: damages.setdefault(place, reply := real(request)) and damaged(reply, place))

    def damaged(reply, place):
        return reply[:place] + bytes([reply[place] ^ 0x40]) + reply[place + 1 :]

    while not damages or place < len(damages[place - 1]):
        second._committer.relay._apart_until = 0.0
        log.append(row(place))
        place += 1
    assert len(damages) == place > 20
    assert counted(second, "looked for after a lost reply") == place
    assert ids(first) == list(range(place))


@pytest.mark.parametrize("committer", ["k0", "k" + "0" * 32])
def test_a_committer_that_is_not_registered_gets_nothing_committed(pair, committer):
    first, _ = pair
    log = first["log"]
    request = sealed(log.id, 0, committer, 1, "w", [row(1)])
    assert decode_reply(first._committer.relay._answer(request)).outcome == "in doubt"
    missing = sealed("missing", 0, committer, 1, "w", [row(1)])
    assert decode_reply(first._committer.relay._answer(missing)).outcome == "declined"
    assert ids(first) == []


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"\xc1",
        msgpack.encode(("committed", [], "")),
        wrap_payload(EnvelopeKind.APPEND_REPLY, msgpack.encode(("done", [], ""))),
        wrap_payload(EnvelopeKind.APPEND_REPLY, msgpack.encode(("committed", [], ""))),
    ],
)
def test_a_reply_that_cannot_be_read_leaves_the_request_in_doubt_and_is_looked_for(pair, reply):
    first, second = pair
    asks(second, lambda real, request: real(request) and reply)
    second["log"].append(row(0))
    assert ids(first) == [0]
    assert counted(second, "looked for after a lost reply") == 1


def test_a_store_that_is_alone_takes_no_role(tmp_path):
    with ts.open(tmp_path) as store:
        log = store.create("log", key=KEY, value=VALUE)
        for n in range(50):
            log.append(row(n))
        assert not store._committer.relay._is_appender
    assert not (tmp_path / "consensus.db.appender").exists()


def test_a_store_that_closes_does_not_take_the_role_or_hand_anything_over(pair):
    first, second = pair
    second["log"].append(row(0))
    for store in pair:
        assert store._committer.relay.close(60)
    for n in range(1, 4):  # as threads do that still commit
        first["log"].append(row(n))
        second["log"].append(row(10 + n))
    assert ids(first) == [0, 1, 2, 3, 11, 12, 13]
    assert counted(second, "handed over") == 1
    assert first._committer.relay._channel._file is None
    assert not {each.name for each in threading.enumerate()} & {"timespine-accept", "timespine-relay"}
    assert second._committer.relay._channel.take(), "the role is free"


def test_a_close_that_waits_too_long_for_another_process_can_be_repeated(pair):
    first, second = pair
    begun, go = threading.Event(), threading.Event()
    real = first._committer.offer_append

    def offer_append(append, collection):
        begun.set()
        go.wait(60)
        return real(append, collection)

    first._committer.offer_append = offer_append
    thread = threading.Thread(target=lambda: second["log"].append(row(0)))
    thread.start()
    begun.wait(60)
    with pytest.raises(Determinate, match=r"an append of another process still works after 0 s; close it again"):
        first.close(timeout=0)
    go.set()
    thread.join(60)
    first.close()
    assert ids(second) == [0]


def test_the_configuration_switches_it_off(tmp_path):
    with ts.open(tmp_path, config=ts.Config(relay_appends=False)) as store:
        assert store._committer.relay is None


def test_a_forked_child_of_the_appender_is_refused(pair):
    first, _ = pair
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            first["log"].append(row(5))
        except WrongProcess:
            os.write(writing, b"refused")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"refused"
