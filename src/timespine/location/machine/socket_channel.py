"""A channel over a Unix socket, in a private folder of the process that has the role.

The file of the role holds the path of the socket. The folder is new for every process that takes the role, with mode
0700. Both sides compare the user id of the other one, as the kernel tells it, with their own. So a path that was made
up leads to no process of another user. A frame is a length of 4 bytes, and as many bytes. One of them (`CLOSING`) says
that a request was not carried out, and will not be. What is in the others is for their readers to check.

A process has one connection to the one with the role, and one request at a time on it. The listening side has a thread
for each connection. Sockets do not survive a fork: the child closes its copies.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import tempfile
import threading
import time

from timespine.errors import CorruptionError, Determinate, Indeterminate
from timespine.location.folder.durable import open_regular
from timespine.location.machine.channel import ANSWER_S, REQUEST_BYTES_MAX, Answer
from timespine.location.machine.role import FileRole

CONNECTIONS_MAX = 64
"""Processes that one process works for at the same time. Others commit by themselves."""

PATH_BYTES_MAX = 100
"""The most bytes of the path of a socket: every system has room for them."""

CLOSE_S = 60.0
"""Seconds that `release` waits for requests that are being carried out, unless `stop` was called before it."""

NAME_BYTES = 16
"""The most bytes that the path of a socket adds to those of its folder and `PREFIX`."""

PREFIX = "timespine-"
"""How the names of folders of sockets begin."""

HELLO = b"timespine channel 2"
"""The first frame on a connection, from the listening side: only then the other one sends requests."""

CLOSING = b"timespine channel closes"
"""The reply to a request that was not carried out, and will not be.

SUBTLE: not an empty frame. A reply whose length is damaged may look like one, and its request was carried out
(test_socket_channel.py).
"""


class SocketChannel(FileRole):
    """A role as the lock of a file, whose content is the path of the socket of the process that has it."""

    def __init__(self, path: str, beside: str, answer_s: float = ANSWER_S) -> None:
        super().__init__(path, beside)
        self._answer_s = answer_s
        self._listener: socket.socket | None = None
        self._path_of_socket = ""
        """The path of the socket, while this process listens."""
        self._accepting: threading.Thread | None = None
        """The thread that takes connections."""
        self._connections: dict[socket.socket, threading.Thread] = {}
        """The connections of processes that ask, each with the thread that carries out its requests."""
        self._connection: socket.socket | None = None
        """The connection to the process that has the role."""
        self._is_stopped = False

    # The side that has the role.

    def listen(self, answer: Answer) -> bool:
        """Answer requests from now on, in threads; return False if this system has no way to."""
        if self._listener is not None or not has_peer_credentials():
            return self._listener is not None
        try:
            _remove_socket(self._published())  # of the process that had the role before: it may have been killed
            self._path_of_socket = path = os.path.join(tempfile.mkdtemp(prefix=PREFIX, dir=_folder_for_sockets()), "s")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(path)
                listener.listen(CONNECTIONS_MAX)
                self._publish(path)
            except BaseException:
                listener.close()
                raise
        except (OSError, CorruptionError):
            self._remove_own_socket()
            return False
        self._listener = listener
        self._accepting = threading.Thread(
            target=self._accept, args=(listener, answer), name="timespine-accept", daemon=True
        )
        self._accepting.start()
        return True

    def _publish(self, path: str) -> None:
        """Write the path of the socket to the file of the role."""
        assert self._file is not None
        os.ftruncate(self._file.fileno(), 0)
        os.pwrite(self._file.fileno(), os.fsencode(path), 0)

    def _accept(self, listener: socket.socket, answer: Answer) -> None:
        """Take connections until the listener is closed."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if not _is_same_user(connection) or len(self._connections) >= CONNECTIONS_MAX:
                connection.close()
                continue
            serve = threading.Thread(target=self._serve, args=(connection, answer), name="timespine-relay", daemon=True)
            self._connections[connection] = serve
            serve.start()

    def _serve(self, connection: socket.socket, answer: Answer) -> None:
        """Carry out the requests of one connection until it ends."""
        try:
            with contextlib.suppress(OSError, _Ended), connection:
                _send(connection, HELLO)
                while True:
                    request = _receive(connection)
                    _send(connection, answer(request) if self._listener is not None else CLOSING)
        finally:
            self._connections.pop(connection, None)

    # The other side.

    def ask(self, request: bytes) -> bytes:
        """Send a request to the process that has the role; return its reply."""
        if len(request) > REQUEST_BYTES_MAX:
            raise Determinate(f"a request of {len(request)} bytes is over {REQUEST_BYTES_MAX}: it was not sent")
        connection, self._connection = self._connection or self._connect(), None
        # SUBTLE: set again only after the whole reply. An interrupt in between must not leave a connection on which the
        # reply to this request would be taken for that to the next one (test_socket_channel.py).
        with contextlib.ExitStack() as failing:
            failing.enter_context(connection)
            try:
                _send(connection, request)
            except OSError as error:  # no process carries out a part of a frame
                raise Determinate(f"the process to ask has gone: {error}") from error
            try:
                reply = _receive(connection)
            except (OSError, _Ended) as error:
                raise Indeterminate(f"the process that was asked did not reply: {error}") from error
            if reply == CLOSING:
                raise Determinate("the process to ask is closing its store: nothing was done")
            failing.pop_all()
        self._connection = connection
        if self._is_stopped:  # meanwhile
            self._hang_up()
        return reply

    def _connect(self) -> socket.socket:
        """Connect to the process that has the role."""
        if self._pid != os.getpid() or not has_peer_credentials():
            raise Determinate("this process has no channel")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self._answer_s)
            connection.connect(os.fsencode(self._published()))
            if not _is_same_user(connection) or _receive(connection) != HELLO:
                raise OSError("it is not a channel of this user")
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | ValueError | _Ended):
                raise Determinate(f"there is no process to ask: {error}") from error
            raise
        return connection

    def _published(self) -> str:
        """Return the path of the socket of the process that has the role, or had it last; empty if there was none."""
        fd = open_regular(self._path, os.O_RDONLY)
        try:
            return os.fsdecode(os.pread(fd, PATH_BYTES_MAX, 0))
        finally:
            os.close(fd)

    # The end.

    def stop(self, limit_s: float) -> bool:
        """Take no more requests, and wait for the threads; return False if one still runs after the limit."""
        if self._pid != os.getpid():
            return True
        self._is_stopped = True
        self._hang_up()
        listener, self._listener = self._listener, None
        if listener is not None:
            _shut(listener, socket.SHUT_RDWR)
            listener.close()
        deadline = time.monotonic() + limit_s
        # SUBTLE: this one first, and then look at the connections: it may just have taken one (test_socket_channel.py).
        takes_none = self._accepting is None or _ends_by(deadline, self._accepting)
        serving = list(self._connections.items())
        for connection, _ in serving:
            _shut(connection, socket.SHUT_RD)  # the reply to a request that was begun can still be sent
        late = [connection for connection, thread in serving if not _ends_by(deadline, thread)]
        for connection in late:
            _shut(connection, socket.SHUT_RDWR)  # the other side may not read its reply
        return takes_none and not late

    def _hang_up(self) -> None:
        """Close the connection to the process that has the role."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def release(self) -> None:
        """Carry out what was begun, take no more requests, and give the role back. Twice is fine."""
        if self._pid != os.getpid():
            return
        self.stop(CLOSE_S)
        self._remove_own_socket()
        super().release()

    def _remove_own_socket(self) -> None:
        path, self._path_of_socket = self._path_of_socket, ""
        _remove_socket(path)

    def leave_to_parent(self) -> None:
        """Close all descriptors in a forked child, and shut nothing down: the parent goes on."""
        for each in (self._listener, self._connection, *self._connections):
            if each is not None:
                each.close()
        self._listener = self._connection = self._accepting = None
        self._connections = {}
        self._path_of_socket = ""
        super().leave_to_parent()


class _Ended(Exception):
    """The other side closed the connection, or sent what is no frame."""


def has_peer_credentials() -> bool:
    """Return whether the kernel tells which user is at the other end of a socket."""
    return hasattr(socket, "SO_PEERCRED")


def _is_same_user(connection: socket.socket) -> bool:
    """Return whether the other end belongs to the user of this process, by the kernel."""
    layout = struct.Struct("3i")  # struct ucred: pid, uid, gid
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    _, uid, _ = layout.unpack(found)
    return bool(uid == os.geteuid())


def _folder_for_sockets() -> str:
    """Return a folder whose path leaves room for that of a socket: the one of this user, or one for temporary files."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    for found in (*([own] if own and is_private(own) else []), tempfile.gettempdir(), "/tmp"):
        if len(os.fsencode(found)) + len(PREFIX) + NAME_BYTES <= PATH_BYTES_MAX:
            return found
    raise OSError("every folder for temporary files has too long a path for a socket")


def _remove_socket(path: str) -> None:
    """Remove a socket and its folder.

    SUBTLE: nothing else, since the path may come from a file (test_socket_channel.py).
    """
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError, ValueError):
        if os.path.basename(folder).startswith(PREFIX) and is_private(folder):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
            os.rmdir(folder)


def is_private(folder: str) -> bool:
    """Return whether a folder belongs to this user, and no other one can enter it."""
    try:
        found = os.stat(folder, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    return found.st_uid == os.geteuid() and found.st_mode & 0o170077 == 0o040000


def _shut(connection: socket.socket, how: int) -> None:
    """End a connection or a listener, also for a thread that waits in it."""
    with contextlib.suppress(OSError):
        connection.shutdown(how)


def _ends_by(deadline: float, thread: threading.Thread) -> bool:
    """Wait for the end of a thread until a deadline of the monotonic clock; return whether it has ended."""
    if thread.is_alive():
        thread.join(max(deadline - time.monotonic(), 0))
    return not thread.is_alive()


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(4, "big") + data)


def _receive(connection: socket.socket) -> bytes:
    """Receive one frame; raise _Ended if there is none."""
    size = int.from_bytes(_receive_exactly(connection, 4), "big")
    if size > REQUEST_BYTES_MAX:
        raise _Ended(f"a frame of {size} bytes is over {REQUEST_BYTES_MAX}")
    return _receive_exactly(connection, size)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        some = connection.recv(min(size - len(found), 1 << 18))
        if not some:
            raise _Ended("the connection ended")
        found += some
    return bytes(found)
