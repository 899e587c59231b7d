"""The channel of the processes of one machine: requests and replies, whole or not at all, of one user."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from assertions import until
from children import line_of, start
from damaged_bytes import flipped, truncated

from timespine.errors import Determinate, Indeterminate
from timespine.location.machine import socket_channel
from timespine.location.machine.channel import REQUEST_BYTES_MAX
from timespine.location.machine.socket_channel import CLOSING, HELLO, PREFIX, SocketChannel


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., SocketChannel]]:
    log = tmp_path / "log"
    log.touch()
    made: list[SocketChannel] = []

    def make(answer_s: float = 60.0) -> SocketChannel:
        made.append(SocketChannel(f"{log}.appender", str(log), answer_s))
        return made[-1]

    yield make
    for each in made:
        each.release()


def listening(make: Callable[..., SocketChannel], answer: Callable[[bytes], bytes]) -> SocketChannel:
    channel = make()
    assert channel.take()
    assert channel.listen(answer)
    return channel


def path_of(tmp_path: Path) -> Path:
    return Path((tmp_path / "log.appender").read_text())


def test_requests_get_their_replies_in_order(make: Callable[..., SocketChannel]) -> None:
    listening(make, lambda request: request[::-1])
    asking = make()
    assert not asking.take()
    assert [asking.ask(f"{n}".encode()) for n in range(100, 110)] == [f"{n}"[::-1].encode() for n in range(100, 110)]
    large = os.urandom(REQUEST_BYTES_MAX)
    assert asking.ask(large) == large[::-1]


def test_the_socket_is_in_a_private_folder_that_goes_with_the_role(
    make: Callable[..., SocketChannel], tmp_path: Path
) -> None:
    channel = listening(make, bytes)
    path = path_of(tmp_path)
    assert path.parent.name.startswith(PREFIX)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    channel.release()
    assert not path.parent.exists()
    with pytest.raises(Determinate, match="no process to ask"):
        make().ask(b"x")


def test_the_next_process_removes_the_folder_of_one_that_was_killed(
    make: Callable[..., SocketChannel], tmp_path: Path
) -> None:
    script = """
import sys, time
from timespine.location.machine.socket_channel import SocketChannel
channel = SocketChannel(sys.argv[1] + ".appender", sys.argv[1])
print(channel.take() and channel.listen(bytes), flush=True)
time.sleep(60)
"""
    child = start(script, tmp_path / "log")
    assert line_of(child) == b"True\n"
    asking = make()
    assert asking.ask(b"x") == b"x"
    left = path_of(tmp_path).parent
    child.kill()
    child.communicate()
    assert left.exists()
    with pytest.raises((Determinate, Indeterminate)):
        asking.ask(b"x")
    listening(make, lambda request: b"next")
    assert not left.exists()
    assert asking.ask(b"x") == b"next"


@pytest.mark.parametrize(("name", "mode"), [("mine", 0o700), (f"{PREFIX}shared", 0o755), (f"{PREFIX}data", 0o700)])
def test_a_path_in_the_file_leads_to_the_removal_of_a_socket_and_of_nothing_else(
    make: Callable[..., SocketChannel], tmp_path: Path, name: str, mode: int
) -> None:
    folder = tmp_path / name
    folder.mkdir(mode=mode)
    (folder / "s").write_text("a file")
    (tmp_path / "log.appender").write_text(str(folder / "s"))
    listening(make, bytes).release()
    assert (folder / "s").read_text() == "a file"


def test_a_process_of_another_user_is_not_served(make: Callable[..., SocketChannel], monkeypatch) -> None:
    served = []
    listening(make, lambda request: served.append(request) or request)
    monkeypatch.setattr(socket_channel, "_is_same_user", lambda connection: False)
    with pytest.raises(Determinate, match="no process to ask"):
        make().ask(b"x")
    assert served == []


def test_the_user_is_taken_from_the_kernel(monkeypatch) -> None:
    one, two = socket.socketpair(socket.AF_UNIX)
    with one, two:
        assert socket_channel._is_same_user(one)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not socket_channel._is_same_user(one)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x05abc", b"\x7f" * 1000])
def test_bytes_that_are_no_frames_end_their_connection_and_nothing_else(
    make: Callable[..., SocketChannel], tmp_path: Path, data: bytes
) -> None:
    listening(make, lambda request: b"reply")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as hostile:
        hostile.connect(str(path_of(tmp_path)))
        assert hostile.recv(100)[4:] == HELLO
        hostile.sendall(data)
        hostile.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert hostile.recv(1 << 16) == b"", "no reply"
    assert make().ask(b"x") == b"reply"


@pytest.fixture
def sending(make: Callable[..., SocketChannel], tmp_path: Path) -> Iterator[Callable[..., SocketChannel]]:
    """A channel whose other side sends these bytes for a hello and a reply, and then ends the connection."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        (tmp_path / "log.appender").write_text(str(tmp_path / "s"))

        def serve(hello: bytes, reply: bytes) -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # the other side may end it first
                connection.sendall(hello)
                if connection.recv(1 << 16):
                    connection.sendall(reply)

        def sending(hello: bytes, reply: bytes) -> SocketChannel:
            threading.Thread(target=serve, args=(hello, reply), daemon=True).start()
            return make()

        yield sending


def frame_of(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize("reply", [b"a reply", CLOSING], ids=["reply", "closing"])
def test_damaged_bytes_of_a_reply_never_say_that_nothing_was_done(
    sending: Callable[..., SocketChannel], reply: bytes
) -> None:
    """They are another reply, for its reader to refuse, or leave the request in doubt."""
    whole, masks = frame_of(reply), range(1, 256, 85)
    lengthened = [bytes([0, 0, 0, size]) + reply for size in range(256) if size != len(reply)]
    for damaged in (*flipped(whole, masks), *truncated(whole), *lengthened):
        with contextlib.suppress(Indeterminate):
            assert sending(frame_of(HELLO), damaged).ask(b"x") != reply


def test_a_damaged_hello_gets_no_request(sending: Callable[..., SocketChannel]) -> None:
    whole = frame_of(HELLO)
    for damaged in (*flipped(whole, range(1, 256, 85)), *truncated(whole)):
        channel = sending(damaged, frame_of(b"a reply"))
        channel._answer_s = 0.05  # of a longer frame, the rest never comes
        with pytest.raises(Determinate, match="no process to ask"):
            channel.ask(b"x")


def test_more_processes_than_the_limit_are_turned_away(make: Callable[..., SocketChannel], monkeypatch) -> None:
    monkeypatch.setattr(socket_channel, "CONNECTIONS_MAX", 2)
    listening(make, lambda request: request)
    first, second, third = make(), make(), make()
    assert (first.ask(b"1"), second.ask(b"2")) == (b"1", b"2")
    with pytest.raises(Determinate):
        third.ask(b"3")
    first.release()
    until(lambda: _asked(third))


def _asked(channel: SocketChannel) -> bool:
    with contextlib.suppress(Determinate):
        return channel.ask(b"3") == b"3"
    return False


def test_a_request_that_is_too_large_is_not_sent(make: Callable[..., SocketChannel]) -> None:
    listening(make, lambda request: pytest.fail("it came"))
    with pytest.raises(Determinate, match="over"):
        make().ask(bytes(REQUEST_BYTES_MAX + 1))


def test_a_reply_that_does_not_come_leaves_its_request_in_doubt_and_is_not_taken_for_the_next_one(
    make: Callable[..., SocketChannel],
) -> None:
    done = threading.Event()

    def answer(request: bytes) -> bytes:
        if request == b"slow":
            done.wait(60)
        return request

    listening(make, answer)
    asking = make(answer_s=0.05)
    with pytest.raises(Indeterminate, match="did not reply"):
        asking.ask(b"slow")
    done.set()
    assert make().ask(b"next") == b"next"
    until(lambda: _reply(asking) == b"quick")


def _reply(channel: SocketChannel) -> bytes:
    with contextlib.suppress(Determinate, Indeterminate):
        return channel.ask(b"quick")
    return b""


def test_the_end_waits_for_a_request_that_was_begun_and_refuses_the_next(make: Callable[..., SocketChannel]) -> None:
    begun, go = threading.Event(), threading.Event()

    def answer(request: bytes) -> bytes:
        begun.set()
        go.wait(60)
        return b"done"

    channel, asking, said = listening(make, answer), make(), []
    thread = threading.Thread(target=lambda: said.append(asking.ask(b"x")))
    thread.start()
    begun.wait(60)
    ending = threading.Thread(target=channel.release)
    ending.start()
    time.sleep(0.01)
    assert ending.is_alive()
    go.set()
    thread.join(60)
    ending.join(60)
    assert said == [b"done"]
    with pytest.raises((Determinate, Indeterminate)):
        asking.ask(b"y")


def _threads() -> set[str]:
    return {each.name for each in threading.enumerate() if each.name in ("timespine-accept", "timespine-relay")}


def test_the_end_waits_for_its_threads_also_those_of_idle_connections(make: Callable[..., SocketChannel]) -> None:
    channel, asking = listening(make, bytes), [make() for _ in range(3)]
    for each in asking:
        each.ask(b"x")
    assert _threads() == {"timespine-accept", "timespine-relay"}
    channel.release()
    assert _threads() == set()


def test_the_end_waits_for_a_connection_that_was_just_taken(make: Callable[..., SocketChannel], monkeypatch) -> None:
    looking, look = threading.Event(), threading.Event()

    def is_same_user(connection: socket.socket) -> bool:
        looking.set()
        return look.wait(60)

    channel = listening(make, bytes)
    monkeypatch.setattr(socket_channel, "_is_same_user", is_same_user)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(channel._path_of_socket)
        looking.wait(60)
        assert not channel.stop(0)
        look.set()
        assert channel.stop(60)
        assert _threads() == set()


def test_a_request_that_takes_too_long_is_reported_and_waited_for_again(make: Callable[..., SocketChannel]) -> None:
    begun, go, said = threading.Event(), threading.Event(), []

    def answer(request: bytes) -> bytes:
        begun.set()
        return request * go.wait(60)

    def ask() -> None:
        with pytest.raises(Indeterminate):
            asking.ask(b"x")
        said.append("in doubt")

    channel, asking = listening(make, answer), make()
    thread = threading.Thread(target=ask)
    thread.start()
    begun.wait(60)
    assert not channel.stop(0)
    thread.join(60)
    assert said == ["in doubt"], "the other side does not wait for it either"
    go.set()
    assert channel.stop(60)
    assert _threads() == set()


def test_a_reply_that_comes_after_the_end_leaves_no_connection(make: Callable[..., SocketChannel]) -> None:
    asking = make()
    listening(make, lambda request: bytes([asking.stop(60)]))
    assert asking.ask(b"x") == b"\1"
    assert asking._connection is None


def test_a_folder_whose_path_is_too_long_for_a_socket_is_passed_over(
    make: Callable[..., SocketChannel], tmp_path: Path, monkeypatch
) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    listening(make, bytes).release()
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(socket_channel, "PATH_BYTES_MAX", 20)
    channel = make()
    assert channel.take()
    assert not channel.listen(bytes)


def test_a_forked_child_serves_nothing_and_asks_nothing(make: Callable[..., SocketChannel]) -> None:
    listening(make, lambda request: str(os.getpid()).encode())
    asking = make()
    asking.ask(b"x")
    reading, writing = os.pipe()
    if not (child := os.fork()):
        signal.alarm(60)
        try:
            asking.ask(b"x")
        except Determinate:
            os.write(writing, b"refused")
        asking.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"refused"
    assert asking.ask(b"x") == str(os.getpid()).encode()
