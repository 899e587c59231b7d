"""Files on the network are told from files on a disk by the table of mounts alone."""

from __future__ import annotations

import pytest

from timespine.errors import UsageError
from timespine.location.folder.network_fs import refuse_network_file_system

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /mnt/nas rw - nfs4 server:/export rw
31 30 254:1 / /mnt/nas/local\040disk rw - xfs /dev/vdb rw
32 27 0:41 / /dbfs rw - fuse.s3fs s3fs rw
33 27 0:42 / /over rw - autofs systemd-1 rw
34 27 0:43 / /over rw master:3 - cifs //server/share rw
35 27 0:44 / /home rw - fuse.gocryptfs /crypt rw
not a line of a mount table
"""


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        ("/data/c.db", None),
        ("/mnt/nas/c.db", "nfs4"),
        ("/mnt/nasty/c.db", None),
        ("/mnt/nas/local disk/c.db", None),
        ("/mnt/nas/local diskette/c.db", "nfs4"),
        ("/dbfs/x/c.db", "fuse.s3fs"),
        ("/over/c.db", "cifs"),
        ("/home/me/c.db", None),
    ],
)
def test_network_file_systems_are_refused(place: str, refused: str | None) -> None:
    if refused is None:
        return refuse_network_file_system(place, MOUNTS)
    with pytest.raises(UsageError, match=refused):
        refuse_network_file_system(place, MOUNTS)
    return refuse_network_file_system(place, None)  # no table, no check
