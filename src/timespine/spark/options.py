"""Options of `spark.read.format("timespine")` and the others: strings, checked, with what to do in every refusal."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass

from timespine.errors import UsageError, shown

KNOWN = frozenset(
    {
        *("path", "store", "collection", "columns", "where", "partitions", "multiplicity", "lease"),
        *("asof", "versionasof", "timestampasof"),
        *(
            "readupdates",
            "readchangefeed",
            "startingversion",
            "endingversion",
            "startingtimestamp",
            "endingtimestamp",
            "images",
        ),
        *("maxrowspertrigger", "maxbytespertrigger", "hold", "mode", "time", "sinkid", "sequenceby"),
        *("timecolumn", "seal", "late"),
        *("checkpointlocation", "queryname"),
    }
)
"""What is understood, in lower case, as Spark hands options over."""


LATEST = "latest"
"""The `startingVersion` of those who want only what comes from now on."""

_OF_FEEDS = ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp")


@dataclass(frozen=True, slots=True)
class Target:
    """A collection in a store."""

    store: str
    """The folder of the store."""
    collection: str
    """The name of the collection."""


class Options:
    """The options of one read or write."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        unknown = sorted(name for name in self._given if name not in KNOWN and not name.startswith(("spark.", "__")))
        if unknown:
            raise UsageError(f"there is no option {unknown[0]}; there are: {', '.join(sorted(KNOWN))}")

    def text(self, *names: str) -> str | None:
        """The first of these options that is given."""
        return next((self._given[name.lower()] for name in names if name.lower() in self._given), None)

    def number(self, name: str) -> int | None:
        """An option that is a number."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"option {name} is a whole number, not {shown(text)}") from None

    def flag(self, name: str) -> bool:
        """An option that is true or false; false if it is not given."""
        text = (self.text(name) or "false").lower()
        if text not in ("true", "false"):
            raise UsageError(f"option {name} is true or false, not {shown(text)}")
        return text == "true"

    def names(self, name: str) -> list[str] | None:
        """An option that is a list of names, with commas between them."""
        text = self.text(name)
        return None if text is None else [each.strip() for each in text.split(",") if each.strip()]

    @property
    def target(self) -> Target:
        """The collection: `load("folder/name")`, or the options `store` and `collection`."""
        store, collection, path = self.text("store"), self.text("collection"), self.text("path")
        if store is not None and (collection or path) is not None:
            return Target(os.path.abspath(store), str(collection or path))
        if path is None:
            raise UsageError("say which collection: load('folder/collection'), or options store and collection")
        folder, name = os.path.split(path.removeprefix("file://").rstrip("/"))
        if not folder or not name:
            raise UsageError(f"{shown(path)} is not the folder of a store and the name of a collection in it")
        return Target(os.path.abspath(folder), name)

    @property
    def as_of(self) -> int | datetime.datetime | None:
        """The time to read at: `asOf`, `versionAsOf` or `timestampAsOf`."""
        return self._moment("asOf", "versionAsOf", timestamp="timestampAsOf")

    @property
    def is_feed(self) -> bool:
        """Whether changes are asked for, and not rows."""
        return self.flag("readChangeFeed") or any(map(self.text, _OF_FEEDS))

    @property
    def is_latest(self) -> bool:
        """Whether only what comes from now on is wanted."""
        return (self.text("startingVersion") or "").lower() == LATEST

    @property
    def starting(self) -> int | datetime.datetime | None:
        """The first time whose changes are wanted."""
        return None if self.is_latest else self._moment("startingVersion", timestamp="startingTimestamp")

    @property
    def ending(self) -> int | datetime.datetime | None:
        """The last time whose changes are wanted."""
        return self._moment("endingVersion", timestamp="endingTimestamp")

    def _moment(self, *names: str, timestamp: str) -> int | datetime.datetime | None:
        given = [name for name in (*names, timestamp) if self.text(name) is not None]
        if len(given) > 1:
            raise UsageError(f"options {' and '.join(given)} say the same thing: give one of them")
        if not given:
            return None
        text = str(self.text(given[0]))
        if given[0] == timestamp or not text.lstrip("-").isdigit():
            return moment_of(given[0], text)
        return int(text)


def moment_of(name: str, text: str) -> datetime.datetime:
    """A moment as people write it; without a zone it is one of UTC."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"option {name} is a time such as 7 or '2026-01-31 12:00:00', not {shown(text)}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
