"""The guard of handles, which belong to the process that opened their store."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from timespine.errors import WrongProcess


class OneProcess:
    """A handle that a process can neither copy nor send to another one: it has locks, leases and connections."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise WrongProcess(
            f"a {type(self).__name__} belongs to the process that opened its store and cannot be pickled: "
            "open the store in the other process, read on Spark with to_spark, or send batches with Writer.transmit"
        )
