"""Options of `spark.read.format("timespine")` and the others: strings, checked; every error says what to change."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from timespine.client.api_for_engines import parse_duration_ms
from timespine.errors import UsageError, short_repr
from timespine.ids import check_segment
from timespine.location.opening.consensus_address import parse_consensus
from timespine.location.opening.store_location import STORAGE, parse_location

APPEND, UPSERT, DELETE = "append", "upsert", "delete"
"""The write modes: append rows, upsert rows by key, or delete rows by key."""

OVERWRITE = "overwrite"
"""The write mode of `df.write.mode("overwrite")`: the rows replace all rows of the collection."""

READ, FEED, STREAM, WRITE, STREAM_WRITE = (
    "spark.read",
    "spark.read of changes",
    "spark.readStream",
    "df.write",
    "df.writeStream",
)
"""The calls that take options."""

_READS = (READ, FEED, STREAM)
_WRITES = (WRITE, STREAM_WRITE)

PLACES = {
    "path": (*_READS, *_WRITES),
    "store": (*_READS, *_WRITES),
    "collection": (*_READS, *_WRITES),
    "consensus": (*_READS, *_WRITES),
    **{f"storage.{name}": (*_READS, *_WRITES) for names in STORAGE.values() for name in names},
    "columns": _READS,
    "where": _READS,
    "partitions": _READS,
    "asOf": (READ,),
    "versionAsOf": (READ,),
    "timestampAsOf": (READ,),
    "multiplicity": (READ,),
    "readUpdates": (READ,),
    "lease": (READ, FEED),
    "readChangeFeed": _READS,
    "startingVersion": (FEED, STREAM),
    "startingTimestamp": (FEED, STREAM),
    "endingVersion": (FEED,),
    "endingTimestamp": (FEED,),
    "maxRowsPerTrigger": (STREAM,),
    "maxBytesPerTrigger": (STREAM,),
    "hold": (STREAM,),
    "key": (WRITE,),
    "mode": _WRITES,
    "sequenceBy": _WRITES,
    "time": (WRITE,),
    "timeColumn": _WRITES,
    "seal": _WRITES,
    "late": _WRITES,
    "sinkId": (STREAM_WRITE,),
    "firstBatch": (STREAM_WRITE,),
    "checkpointLocation": (STREAM_WRITE,),
    "queryName": (STREAM_WRITE,),
}
"""Every option, with the calls that accept it; other calls refuse it."""

STORAGE_TAKES = "storage has the options " + ", ".join(sorted({each for some in STORAGE.values() for each in some}))
"""What a refused storage option is told. Its name and value are not repeated: they may be secret."""

_SPELLED = {name.lower(): name for name in PLACES}
"""The options by their names in lower case, as Spark passes them."""

_NUMBERS = {"partitions": 1, "maxRowsPerTrigger": 1, "maxBytesPerTrigger": 1, "time": 0, "firstBatch": 0}
"""The options that are numbers, with the least value of each."""

_FLAGS = ("readChangeFeed", "readUpdates")

_CHOICES = {"multiplicity": ("rows", "column"), "mode": (APPEND, UPSERT, DELETE)}

LATEST = "latest"
"""The `startingVersion` of a stream that begins with the next commit."""

_OF_FEEDS = ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp")

_WHOLE = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class CollectionAddress:
    """The address of a collection."""

    store: str
    """The absolute path of the folder of the store, or its URL."""
    collection: str
    """The name of the collection."""
    storage: tuple[tuple[str, str], ...] = ()
    """How the bucket of the store is reached."""
    consensus: str = ""
    """The address of the logs of the store, without a password; empty: its descriptor has it."""

    def options(self) -> dict[str, str]:
        """Return the options that name the collection to Spark."""
        more = {f"storage.{name}": value for name, value in self.storage}
        if self.consensus:
            more["consensus"] = self.consensus
        return {"store": self.store, "collection": self.collection, **more}


class Options:
    """The options of one read or write."""

    def __init__(self, given: Mapping[str, str], *places: str) -> None:
        """Check the options of a call in one of `places`; without places, of any call."""
        self._given = {name.lower(): value for name, value in given.items() if not name.startswith(("spark.", "__"))}
        if READ in places and FEED in places:
            places = tuple(each for each in places if each != (READ if self.is_feed else FEED))
        self._check_places(places or tuple(dict.fromkeys(each for some in PLACES.values() for each in some)))
        self._check_values()
        self._check_together(places)

    def _check_places(self, places: tuple[str, ...]) -> None:
        there = [name for name, allowed in PLACES.items() if not set(places).isdisjoint(allowed)]
        for given in sorted(self._given):
            name = _SPELLED.get(given)
            if name is None and given.startswith("storage."):
                raise UsageError(
                    f"{STORAGE_TAKES}: give credentials to driver and executors in their environment, never as options"
                )
            if name is None:
                raise UsageError(f"there is no option {short_repr(given)}; there are: {', '.join(there)}")
            if name not in there:
                raise UsageError(
                    f"option {name} is for {' and '.join(PLACES[name])}; here, with {' or '.join(places)}, there are: "
                    f"{', '.join(there)}"
                )

    def _check_values(self) -> None:
        for name, least in _NUMBERS.items():
            number = self.number(name)
            if number is not None and number < least:
                raise UsageError(f"option {name} is a number from {least} on, not {number}")
        for name in _FLAGS:
            self.flag(name)
        for name, choices in _CHOICES.items():
            text = self.text(name)
            if text is not None and text not in choices:
                raise UsageError(f"option {name} is {', '.join(choices[:-1])} or {choices[-1]}, not {short_repr(text)}")
        if self.names("columns") == []:
            raise UsageError("option columns names none: give their names with commas between them")
        lease, hold = self.text("lease"), self.text("hold")
        if lease is not None:
            parse_duration_ms(lease)
        if hold is not None:
            check_segment(hold, "hold")
        _ = self.as_of, self.starting, self.ending

    def _check_together(self, places: tuple[str, ...]) -> None:
        """Refuse options that contradict each other."""
        if self.text("readChangeFeed") is not None and not self.flag("readChangeFeed"):
            asked = next((each for each in _OF_FEEDS if self.text(each) is not None), None)
            if asked is not None:
                raise UsageError(f"option {asked} asks for changes, and readChangeFeed=false for rows: leave out one")
        first, last = self.starting, self.ending
        if type(first) is type(last) and first is not None and last < first:  # type: ignore[operator]
            raise UsageError(f"changes from {first} to {last}: the ending one must not be before the starting one")
        if self.flag("readUpdates"):
            other = next(
                (each for each in ("asOf", "versionAsOf", "timestampAsOf", "multiplicity") if self.text(each)), None
            )
            if other is not None or self.is_feed:
                raise UsageError(f"readUpdates gives all updates: leave out {other or 'readChangeFeed and its times'}")
        if self.is_latest and places and STREAM not in places:
            raise UsageError("startingVersion=latest is for streams: give a read the version to start from")
        if self.text("maxRowsPerTrigger") is not None and self.text("maxBytesPerTrigger") is not None:
            raise UsageError("give either maxRowsPerTrigger or maxBytesPerTrigger")
        mode = self.text("mode") or APPEND
        if self.text("sequenceBy") is not None and mode != UPSERT:
            raise UsageError(
                f"sequenceBy says which of several changes of a key is the last: it is for upsert, not {mode}"
            )
        if self.text("time") is not None and mode != APPEND:
            raise UsageError(
                f"option time is for append: {mode} looks at the newest rows, and stands at the next free time"
            )

    def text(self, *names: str) -> str | None:
        """Return the first of these options that has a value."""
        return next((self._given[name.lower()] for name in names if name.lower() in self._given), None)

    def number(self, name: str) -> int | None:
        """Parse an option as a number."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"option {name} is a whole number, not {short_repr(text)}") from None

    def flag(self, name: str) -> bool:
        """Parse an option as true or false; the default is false."""
        text = (self.text(name) or "false").lower()
        if text not in ("true", "false"):
            raise UsageError(f"option {name} is true or false, not {short_repr(text)}")
        return text == "true"

    def names(self, name: str) -> list[str] | None:
        """Parse an option as a list of names separated by commas."""
        text = self.text(name)
        return None if text is None else [each.strip() for each in text.split(",") if each.strip()]

    @property
    def target(self) -> CollectionAddress:
        """Give the address of the collection: `load("store/name")`, or the options `store` and `collection`."""
        store, collection, path = self.text("store"), self.text("collection"), self.text("path")
        if store is not None and (collection or path) is not None:
            return self._address(store, str(collection or path))
        if path is None:
            raise UsageError("name the collection: load('folder/collection'), or options store and collection")
        folder, name = os.path.split(path.rstrip("/"))
        if not folder.removeprefix("file:") or folder.endswith(":/") or not name:
            raise UsageError(f"{short_repr(path)} is not the location of a store and the name of a collection in it")
        return self._address(folder, name)

    def _address(self, store: str, collection: str) -> CollectionAddress:
        consensus = self.text("consensus") or ""
        if consensus:
            parse_consensus(consensus)  # refuses passwords: Spark shows options in plans
        location = parse_location(store, self._storage())
        return CollectionAddress(location.url, collection, location.storage, consensus)

    def _storage(self) -> dict[str, str]:
        """Return the options of `storage`: .option("storage.region", "eu-central-1")."""
        return {
            name.removeprefix("storage."): value for name, value in self._given.items() if name.startswith("storage.")
        }

    @property
    def as_of(self) -> int | datetime.datetime | None:
        """Parse the time to read at: `asOf`, `versionAsOf` or `timestampAsOf`."""
        return self._time_option("asOf", "versionAsOf", timestamp="timestampAsOf")

    @property
    def is_feed(self) -> bool:
        """Return whether the options ask for changes instead of rows."""
        return self.flag("readChangeFeed") or any(self.text(each) is not None for each in _OF_FEEDS)

    @property
    def is_latest(self) -> bool:
        """Return whether the stream begins with the next commit."""
        return (self.text("startingVersion") or "").lower() == LATEST

    @property
    def starting(self) -> int | datetime.datetime | None:
        """Parse the first time whose changes to read."""
        return None if self.is_latest else self._time_option("startingVersion", timestamp="startingTimestamp")

    @property
    def ending(self) -> int | datetime.datetime | None:
        """Parse the last time whose changes to read."""
        return self._time_option("endingVersion", timestamp="endingTimestamp")

    def _time_option(self, *names: str, timestamp: str) -> int | datetime.datetime | None:
        given = [name for name in (*names, timestamp) if self.text(name) is not None]
        if len(given) > 1:
            raise UsageError(f"options {' and '.join(given)} mean the same: give one of them")
        if not given:
            return None
        text = str(self.text(given[0]))
        if given[0] != timestamp and _WHOLE.fullmatch(text):
            if int(text) < 0:
                raise UsageError(f"option {given[0]} is a time from 0 on, not {text}")
            return int(text)
        if given[0].endswith("Version") or given[0].startswith("version"):
            raise UsageError(
                f"option {given[0]} is a version such as 7, not {short_repr(text)}; a moment is a {timestamp}"
            )
        return parse_option_time(given[0], text)


def parse_option_time(name: str, text: str) -> datetime.datetime:
    """Parse a timestamp; without a zone it is in UTC."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"option {name} is a time such as 7 or '2026-01-31 12:00:00', not {short_repr(text)}"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
