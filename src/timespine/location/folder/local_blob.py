"""The Blob port as a folder: `root/collection/writer/name`, one file per blob.

A put writes a temporary file, syncs it, and *links* it to its final name. A
link, unlike a rename, fails if the name is taken, so keys stay write-once even
between processes. Then the folder is synced. So are its parent and the root,
unless this process knows that their entries are durable (`durable_folders`): an
entry is only as durable as every folder above it, and a folder found in place
may have been made by a process that has not synced it yet. When put returns, the
value survives power loss.

Nothing below the root is reached through a symbolic link: every step is opened
relative to its parent with O_NOFOLLOW. A link where a folder or a file should
be is a CorruptionError; one elsewhere is ignored.

A new root is for its owner alone, unless the caller gives another mode. Files and
folders below it get the permissions of the root, whatever the umask is: so all
processes that share a store make files that the others can use.

A delete is not synced. If power loss brings the file back, it is a blob that
no state references (states forget a blob before it is deleted, durably, and
names are never used again), so the next sweep of leaked blobs removes it.

Folders that a delete leaves empty are removed, since every writer has its own
and writers come and go. POSIX only, on a file system with hard links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator

from timespine.errors import CorruptionError, Determinate, Indeterminate, ReadOnlyStore, Unavailable, UsageError
from timespine.ids import BlobKey, is_segment, parse_blob_key, parse_blob_prefix
from timespine.location.blob import BLOB_BYTES_MAX, BlobInfo
from timespine.location.checks import (
    check_get,
    check_get_range,
    check_inside,
    check_open,
    check_put,
    check_same,
    check_size,
)
from timespine.location.folder.durable import PRIVATE_FOLDER, SPACE, make_folders, no_space, set_mode, sync
from timespine.location.folder.durable_folders import DurableFolders

TEMPORARY = ".tmp"
"""The folder of unfinished puts. No segment begins with a dot, so it belongs to no collection."""

ATTEMPTS_MAX = 16
"""How often a put starts again because a folder or its temporary file was removed under it."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: a FIFO must not hang us
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20

_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_SURELY_NOT_LINKED = frozenset({errno.EMLINK, errno.EACCES, errno.EROFS, errno.ENOMEM, errno.ENAMETOOLONG})
_SURELY_NOT_REMOVED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ENOMEM})


class LocalBlob:
    """Blobs as files below a root folder, durable against power loss.

    With `read_only` the adapter makes, changes and syncs nothing; a root that does not exist holds no blobs.
    """

    def __init__(self, root: str | os.PathLike[str], *, read_only: bool = False, mode: int = PRIVATE_FOLDER) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._closed = False
        self._read_only = read_only
        self._durable = DurableFolders()
        if read_only:
            return
        with _failures(Determinate, f"cannot open the folder {self._root}", missing_too=True):
            make_folders(self._root, mode)
        if not os.path.isdir(self._root):
            raise UsageError(f"{self._root} is not a folder")
        with self._open_root() as root_fd:
            os.close(_open_or_make(TEMPORARY, root_fd))

    def put(self, key: str, value: bytes) -> None:
        parsed = check_put(key, value)
        self._check_writable()
        for _ in range(ATTEMPTS_MAX):
            # SUBTLE: FileNotFoundError means that a delete removed a folder of ours while it was empty, or
            # that a sweep took our temporary file. Nothing is linked then, and starting again is safe
            # (test_put_starts_again_when_its_folder_vanishes).
            with contextlib.suppress(FileNotFoundError), self._open_root() as root:
                self._put_once(root, parsed, value)
                return
        raise Determinate(f"blob {key} was not put: its folder vanished {ATTEMPTS_MAX} times")

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        parsed, bytes_max = check_get(key, max_bytes)
        try:
            with self._opened(parsed) as (fd, size):
                check_size(key, size, bytes_max)
                return _read_exactly(fd, size, key)
        except FileNotFoundError:
            return None

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        parsed = check_get_range(key, start, stop)
        try:
            with self._opened(parsed) as (fd, size):
                check_size(key, size, BLOB_BYTES_MAX)
                check_inside(key, stop, size)
                return _read_range(fd, start, stop, key)
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> bool:
        parsed = parse_blob_key(key)
        self._check_writable()
        with self._open_root() as root, _failures(Indeterminate, f"deleting blob {key}"):
            try:
                with _open_folders(root, parsed) as folders:
                    info = os.stat(parsed.name, dir_fd=folders[-1], follow_symlinks=False)
                    if not stat.S_ISREG(info.st_mode):
                        raise CorruptionError(f"{key} is not a regular file")
                    os.unlink(parsed.name, dir_fd=folders[-1])
                    with contextlib.suppress(OSError):  # most often: not empty
                        os.rmdir(parsed.writer, dir_fd=folders[1])
                        os.rmdir(parsed.collection, dir_fd=folders[0])
                    return True
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno in _SURELY_NOT_REMOVED:
                    raise Determinate(f"blob {key} was not deleted: {error.strerror}") from error
                raise

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        return self._list(*parse_blob_prefix(prefix))

    def sweep_temporary(self, older_than_s: float, now: float) -> int:
        """Remove temporary files that were last written more than `older_than_s` before `now`; return how many.

        Crashed processes leave them behind. Age alone decides, in seconds since the epoch: a process id (their names
        begin with one, for people) means nothing to another container. A live put that loses its file starts again.
        """
        if not older_than_s >= 0:
            raise UsageError(f"older_than_s {older_than_s!r} is not a number of seconds")
        self._check_writable()
        swept = 0
        with self._open_root() as root, _failures(Determinate, "cannot sweep temporary files"):
            temporary = _open_or_make(TEMPORARY, root)
            try:
                for name in os.listdir(temporary):
                    with contextlib.suppress(FileNotFoundError):
                        info = os.stat(name, dir_fd=temporary, follow_symlinks=False)
                        if stat.S_ISREG(info.st_mode) and info.st_mtime < now - older_than_s:
                            os.unlink(name, dir_fd=temporary)
                            swept += 1
            finally:
                os.close(temporary)
        return swept

    def links(self) -> list[str]:
        """List links where folders or files of blobs could be. The adapter never made them, and never follows them."""
        with self._open_root() as root, _failures(Determinate, "cannot list links", missing_too=True):
            return sorted(_links(root, ""))

    def close(self) -> None:
        self._closed = True
        self._durable.close()

    @contextlib.contextmanager
    def _open_root(self) -> Iterator[int]:
        """Open the root anew for every call, so that nothing has to survive a fork or a close."""
        check_open(self._closed, "blob")
        what = f"the folder {self._root} cannot be opened"
        with _failures(Determinate, what, missing_too=not self._read_only):
            fd = os.open(self._root, _FOLDER)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _opened(self, key: BlobKey) -> Iterator[tuple[int, int]]:
        """Open the file of a key for reading, and give its size; raise FileNotFoundError if there is none."""
        with (
            self._open_root() as root,
            _failures(Determinate, f"cannot read blob {key}"),
            _open_folders(root, key) as folders,
            _open_file(folders[-1], key) as opened,
        ):
            yield opened

    def _check_writable(self) -> None:
        if self._read_only:
            raise ReadOnlyStore(f"{self._root} is open for reading only")

    def _put_once(self, root: int, key: BlobKey, value: bytes) -> None:
        with contextlib.ExitStack() as stack:
            with _failures(Determinate, f"blob {key} was not put"):
                temporary = _open_or_make(TEMPORARY, root)
                stack.callback(os.close, temporary)
                name = f"{os.getpid()}-{secrets.token_hex(8)}"
                stack.callback(_remove_temporary, name, temporary)
                _write_durably(name, temporary, value)
                folders = stack.enter_context(_open_folders(root, key, make=True))
            try:
                os.link(name, key.name, src_dir_fd=temporary, dst_dir_fd=folders[-1], follow_symlinks=False)
            except FileExistsError:
                with _failures(Indeterminate, f"blob {key} exists and cannot be compared"):
                    _require_same(folders[-1], key, value)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise _link_failure(key, error) from error
            with _failures(Indeterminate, f"blob {key} may not be durable", missing_too=True):
                sync(folders[-1])
                # SUBTLE: the entries of the folders are needed as well, once: see `durable_folders`
                # (test_folders_are_synced_again_if_they_were_removed_and_made_anew).
                for folder, above in ((folders[2], folders[1]), (folders[1], folders[0])):
                    if not self._durable.has(folder):
                        sync(above)
                        self._durable.add(folder)

    def _list(self, *segments: str) -> Iterator[BlobInfo]:
        """List the blobs depth first.

        SUBTLE: folders are ordered as "name/", because '-' sorts before '/': "a-b/..." comes before "a/..."
        (test_list_keys_is_in_order_of_the_whole_key).
        """
        try:
            with (
                self._open_root() as root,
                _failures(Determinate, "cannot list blobs"),
                _open_folders(root, segments) as folders,
            ):
                names = _subfolders(folders[-1]) if len(segments) < 2 else []
                sizes = _file_sizes(folders[-1]) if len(segments) == 2 else {}
        except FileNotFoundError:
            return
        for name in sorted(names, key=lambda name: name + "/"):
            yield from self._list(*segments, name)
        for name in sorted(sizes):
            yield BlobInfo("/".join((*segments, name)), sizes[name])


@contextlib.contextmanager
def _failures(kind: type[Unavailable], what: str, *, missing_too: bool = False) -> Iterator[None]:
    """Raise OSErrors as `kind`; a missing file stays a FileNotFoundError unless `missing_too`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not missing_too:
            raise
        if error.errno in SPACE and kind is Determinate:
            raise no_space(what, str(error.strerror)) from error
        raise kind(f"{what}: {error.strerror or error}") from error


def _link_failure(key: BlobKey, error: OSError) -> UsageError | Unavailable:
    if error.errno in _NO_LINKS:
        return UsageError(f"blob {key} was not put: {error.strerror}; the root must be one file system with hard links")
    if error.errno in SPACE:
        return no_space(f"blob {key} was not put", str(error.strerror))
    if error.errno in _SURELY_NOT_LINKED:
        return Determinate(f"blob {key} was not put: {error.strerror}")
    return Indeterminate(f"blob {key} may not have been put: {error.strerror}")


def _open_folder(name: str, parent: int) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise CorruptionError(f"{name} should be a folder and is a link or a file") from error
        raise


def _open_or_make(name: str, parent: int) -> int:
    mode = stat.S_IMODE(os.fstat(parent).st_mode) & 0o777
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        return _open_folder(name, parent)
    fd = _open_folder(name, parent)
    set_mode(fd, mode)
    return fd


@contextlib.contextmanager
def _open_folders(root: int, segments: tuple[str, ...], *, make: bool = False) -> Iterator[list[int]]:
    """Open the root and the folders on the way to a key or prefix, outermost first."""
    folders = [root]
    try:
        for segment in segments[:2]:
            folders.append((_open_or_make if make else _open_folder)(segment, folders[-1]))
        yield folders
    finally:
        for folder in folders[1:]:
            os.close(folder)


@contextlib.contextmanager
def _open_file(folder: int, key: BlobKey) -> Iterator[tuple[int, int]]:
    """Open the file of a key, and give its size."""
    try:
        fd = os.open(key.name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise CorruptionError(f"{key} is not a regular file") from error
        raise
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise CorruptionError(f"{key} is not a regular file")
        yield fd, info.st_size
    finally:
        os.close(fd)


def _read_exactly(fd: int, size: int, key: str) -> bytes:
    """Return all `size` bytes of the file; raise CorruptionError if it does not end there."""
    chunks = []
    missing = size + 1
    while missing > 0 and (chunk := os.read(fd, missing)):
        chunks.append(chunk)
        missing -= len(chunk)
    if missing != 1:
        raise CorruptionError(f"blob {key} changed its size while it was read")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _read_range(fd: int, start: int, stop: int, key: str) -> bytes:
    """Return the bytes [start, stop) of a file that is large enough for them."""
    chunks = []
    while start < stop and (chunk := os.pread(fd, stop - start, start)):
        chunks.append(chunk)
        start += len(chunk)
    if start != stop:
        raise CorruptionError(f"blob {key} changed its size while it was read")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _write_durably(name: str, folder: int, value: bytes) -> None:
    mode = stat.S_IMODE(os.fstat(folder).st_mode) & 0o666
    fd = os.open(name, _NEW_FILE, mode, dir_fd=folder)
    try:
        set_mode(fd, mode)
        rest = memoryview(value)
        while rest:
            rest = rest[os.write(fd, rest) :]
        sync(fd)
    finally:
        os.close(fd)


def _remove_temporary(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):  # sweep_temporary removes it later
        os.unlink(name, dir_fd=folder)


def _require_same(folder: int, key: BlobKey, value: bytes) -> None:
    """Sync the file of a key that exists, if it has the same bytes; raise UsageError if it has others."""
    with _open_file(folder, key) as (fd, size):
        same = size == len(value)
        rest = memoryview(value)
        while same and rest:
            chunk = os.read(fd, _CHUNK)
            same = bool(chunk) and chunk == rest[: len(chunk)]
            rest = rest[len(chunk) :]
        check_same(key, same)
        sync(fd)


def _links(folder: int, prefix: str) -> Iterator[str]:
    """Yield the links in a folder of blobs, and in those below it."""
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_symlink()) for entry in entries)
    yield from (prefix + name for name, is_link in found if is_link)
    if prefix.count("/") < 2:
        for name in _subfolders(folder):
            with contextlib.suppress(FileNotFoundError):
                below = _open_folder(name, folder)
                try:
                    yield from _links(below, f"{prefix}{name}/")
                finally:
                    os.close(below)


def _subfolders(folder: int) -> list[str]:
    return [entry.name for entry in _ours(folder) if entry.is_dir(follow_symlinks=False)]


def _file_sizes(folder: int) -> dict[str, int]:
    sizes = {}
    for entry in _ours(folder):
        with contextlib.suppress(FileNotFoundError):
            if entry.is_file(follow_symlinks=False):
                sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return sizes


def _ours(folder: int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries with names of the grammar of segments, without links; other entries are foreign."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_segment(entry.name) and not entry.is_symlink():
                yield entry
