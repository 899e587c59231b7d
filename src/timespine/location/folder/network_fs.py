"""The kind of file system that a file is on: local, or of the network.

The table of mounts is an argument, so that the decision depends on text alone.
"""

from __future__ import annotations

import re

from timespine.errors import UsageError

# fmt: off
_NETWORK = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "vmhgfs", "wekafs",
})
_LOCAL_FUSE = frozenset({
    "fuse.bindfs", "fuse.encfs", "fuse.ext4", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs", "fuse.ntfs",
    "fuse.ntfs-3g", "fuse.zfs",
})
# fmt: on


def mount_table() -> str | None:
    """Read /proc/self/mountinfo; return None where there is none, and then nothing is checked."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            return table.read()
    except OSError:
        return None


def mount_of(path: str, table: str) -> tuple[str, str]:
    """Return the place and the kind of the mount that an absolute path is on; both empty if none is known."""
    best, kind = "", ""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]).rstrip("/") + "/"
        if path.startswith(mount) and len(mount) >= len(best):  # the last mount at one place is on top
            best, kind = mount, after.split(" ")[0]
    return best, kind


def refuse_network_file_system(path: str, table: str | None) -> None:
    """Raise UsageError for a path on a network file system: its clients lack the shared memory that WAL needs."""
    place, kind = mount_of(path, table or "")
    fuse = (kind == "fuse" or kind.startswith("fuse.")) and kind not in _LOCAL_FUSE
    if fuse or kind in _NETWORK:
        raise UsageError(
            f"{path} is on a network file system ({kind} at {place}): put the consensus file on a local disk,"
            " or use PostgreSQL or an object store for consensus"
        )
