"""The location of a store: one grammar for `timespine.open`, the command line and the options of Spark.

A location is a path of a folder, or a URL of a bucket and a prefix in it. It never contains a secret: user names,
passwords and query strings are refused, because locations appear in messages, logs and plans.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from timespine.errors import UsageError, short_repr
from timespine.hints import Hint

FILE, MEMORY, S3, GS, AZ, ABFSS = "file", "memory", "s3", "gs", "az", "abfss"
"""The schemes of canonical locations."""

_SPELLINGS = {FILE: FILE, MEMORY: MEMORY, S3: S3, "s3a": S3, "s3n": S3, GS: GS, AZ: AZ, ABFSS: ABFSS, "abfs": ABFSS}
"""The schemes that users write, and what each stands for: people copy paths from Hadoop."""

FLAGS = ("allow_http", "virtual_hosted_style_request", "skip_signature")
"""The storage options that are true or false."""

STORAGE = {
    S3: ("region", "endpoint", *FLAGS),
    GS: ("skip_signature",),
    AZ: ("account_name", "endpoint", "allow_http", "skip_signature"),
    ABFSS: ("endpoint", "allow_http", "skip_signature"),
}
"""The storage options by scheme: how storage is reached. None of them is secret; keys and tokens are no options."""

PREFIX_MAX = 512
"""Characters of the prefix of a store in its bucket, at most: S3 allows 1024 bytes for a whole name."""

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/(/?)(.*)", re.DOTALL)
_BUCKET = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,221}")
_ACCOUNT = re.compile(r"([a-z0-9-]{3,63})@([a-z0-9]{3,24})\.dfs\.core\.windows\.net")
_SEGMENT = re.compile(r"[a-zA-Z0-9_.=+@-]+")
_OPTION_VALUE = re.compile(r"[a-zA-Z0-9._-]{1,128}")
_AZURE_ENDPOINT = re.compile(r"https?://[a-zA-Z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9]{3,24})?/?")
"""An endpoint of Azure may have the account as its path: emulators and private clouds do."""

_ENDPOINT = re.compile(r"https?://[a-zA-Z0-9.-]+(:[0-9]{1,5})?/?|https?://\[[0-9a-fA-F:]+\](:[0-9]{1,5})?/?")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A parsed location. Two locations are equal if they name the same store in the same way of reaching it."""

    scheme: str
    """One of the canonical schemes."""
    bucket: str
    """The bucket or container, for Azure with its account; empty for a folder."""
    path: str
    """The path of the folder, as it was given; or the prefix in the bucket, without a slash at either end."""
    storage: tuple[tuple[str, str], ...] = ()
    """The storage options, in order."""

    @property
    def url(self) -> str:
        """The canonical text, without storage options: an absolute path, or a URL."""
        if self.scheme == FILE:
            return os.path.abspath(self.path)
        return f"{self.scheme}://{self.bucket}{'/' if self.path else ''}{self.path}"

    @property
    def is_folder(self) -> bool:
        """Whether the store is in a folder of this machine."""
        return self.scheme == FILE


def parse_location(
    given: str | os.PathLike[str], storage: Mapping[str, str | bool] | None = None, *, what: str = "store"
) -> StoreLocation:
    """Parse the location of a store; raise a UsageError that says what to write instead."""
    try:
        text = os.fsdecode(given)
    except TypeError:
        raise UsageError(f"{short_repr(given)} is not a path: give a text") from None
    if "\0" in text:
        raise UsageError(f"{short_repr(given)} is not a path: no file or folder has a NUL in its name")
    found = _URL.fullmatch(text)
    if found is None or found[1].lower() == FILE or text.lower().startswith("file:"):
        _check_storage(FILE, storage)
        return StoreLocation(FILE, "", str(Path(text.removeprefix("file://").removeprefix("file:"))))
    scheme = _SPELLINGS.get(found[1].lower())
    if scheme is None or not found[2]:
        raise UsageError(f"{short_repr(found[1] + '://')} is no location of a {what}: {_known()}")
    bucket, path = _split(scheme, found[3])
    return StoreLocation(scheme, bucket, path, _check_storage(scheme, storage))


def _known() -> str:
    return "give a path, or a URL that begins with s3://, gs://, az:// or abfss://"


def _split(scheme: str, rest: str) -> tuple[str, str]:
    """Split what follows the scheme into bucket and prefix. No message repeats it before it is known to be harmless."""
    if "?" in rest or "#" in rest:
        raise UsageError(
            f"a {scheme}:// location has no query string, which would appear in logs", hint=Hint("give-storage")
        )
    bucket, _, path = rest.partition("/")
    if scheme == ABFSS:
        if _ACCOUNT.fullmatch(bucket) is None:
            raise UsageError("an abfss:// location is abfss://container@account.dfs.core.windows.net/prefix")
    elif "@" in bucket or ":" in bucket:
        raise UsageError(f"a {scheme}:// location has no user name, password or port", hint=Hint("give-endpoint"))
    elif _BUCKET.fullmatch(bucket) is None:
        raise UsageError(f"{short_repr(bucket)} is not the name of a bucket: write {scheme}://bucket/prefix")
    path = path.rstrip("/")
    segments = path.split("/") if path else []
    if len(path) > PREFIX_MAX or any(_SEGMENT.fullmatch(each) is None or each in (".", "..") for each in segments):
        raise UsageError(
            f"{short_repr(path)} is not a prefix of a store: segments of letters, digits and _.=+@- with one '/' "
            f"between them, at most {PREFIX_MAX} characters"
        )
    return bucket, path


def account_of(bucket: str) -> tuple[str, str]:
    """Split the bucket of an abfss location into container and account."""
    found = _ACCOUNT.fullmatch(bucket)
    assert found is not None, "a location was parsed"
    return found[1], found[2]


def _check_storage(scheme: str, given: Mapping[str, str | bool] | None) -> tuple[tuple[str, str], ...]:
    """Return the storage options of a location as texts, in order; refuse all that are not on the list."""
    allowed = STORAGE.get(scheme, ())
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"storage is a mapping such as {{'region': 'eu-central-1'}}, not {type(given).__name__}")
    found = {}
    for name, value in (given or {}).items():
        if name not in allowed:
            # The name and the value are not repeated: they may be a key and a secret.
            raise UsageError(
                f"storage takes {', '.join(allowed) or 'nothing'} for a {scheme} location, and no credentials: those "
                "come from the environment of each process"
            )
        found[name] = _option(scheme, name, value)
    if found.get("endpoint", "").startswith("http://") and found.get("allow_http") != "true":
        raise UsageError("the endpoint is not encrypted: use https, or set the storage option allow_http too")
    return tuple(sorted(found.items()))


def _option(scheme: str, name: str, value: str | bool) -> str:
    if name in FLAGS:
        flag = str(value).lower()
        if flag not in ("true", "false"):
            raise UsageError(f"storage option {name} is True or False")
        return flag
    endpoint = _AZURE_ENDPOINT if scheme in (AZ, ABFSS) else _ENDPOINT
    grammar = endpoint if name == "endpoint" else _OPTION_VALUE
    if not isinstance(value, str) or grammar.fullmatch(value) is None:
        example = "such as https://127.0.0.1:9000, without user and path" if name == "endpoint" else "a name"
        raise UsageError(f"storage option {name} is {example}")
    return value.rstrip("/")
