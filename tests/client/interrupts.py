"""Interrupts at a chosen moment of a call: at a line, or at the n-th bytecode, that the call runs in some files."""

import gc
import sys
from pathlib import Path
from typing import NamedTuple

import timespine

ROOT = Path(timespine.__file__).parent
LOCKS = str(ROOT / "locks.py")


def files_of(*names):
    """The files of some modules and packages of the library, by their paths."""
    found = [ROOT / name for name in names]
    assert all(each.exists() for each in found), "a module was moved"
    return frozenset(str(file) for each in found for file in ([each] if each.is_file() else each.rglob("*.py")))


class Place(NamedTuple):
    """A line that a call runs."""

    file: str
    line: int
    taker: str = ""
    """For a line of a lock: the line that takes the lock or gives it back."""

    def __str__(self):
        return f"{Path(self.file).relative_to(ROOT)}:{self.line}" + (f" for {self.taker}" if self.taker else "")


def place_of(frame):
    """The place that a frame is at. Every line that uses a lock is a place of its own inside the lock."""
    file = frame.f_code.co_filename
    line = frame.f_lineno
    if file != LOCKS:
        return Place(file, line)
    while frame is not None and frame.f_code.co_filename == LOCKS:
        frame = frame.f_back
    return Place(file, line, f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else "")


class Traced:
    """A block that is traced, in its thread. The collector rests: it would run finalizers of other stores inside."""

    def __enter__(self):
        self._before = sys.gettrace(), sys.getprofile()
        gc.disable()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before[0])
        sys.setprofile(self._before[1])
        gc.enable()


class Lines(Traced):
    """Collects the places that a block runs; raises KeyboardInterrupt when the block is at one of them first."""

    def __init__(self, files, place=None):
        self.files = files
        self.place = place
        self.where = None
        """Where the block was interrupted."""
        self.seen = {}
        """The places, in the order in which the block came to them."""

    def _call(self, frame, event, arg):
        file = frame.f_code.co_filename
        return self._local if file in self.files and (self.place is None or file == self.place.file) else None

    def _local(self, frame, event, arg):
        if event == "line":
            if self.place is None:
                self.seen[place_of(frame)] = None
            elif frame.f_lineno == self.place.line and place_of(frame) == self.place:
                self.where = self.place
                raise KeyboardInterrupt
        return self._local


class Bytecodes(Traced):
    """Raises KeyboardInterrupt at one bytecode of the block, in the thread of the block; counts the bytecodes.

    `twice` raises another one at the first call in those files after the first: in the cleanup.
    """

    def __init__(self, files, moment=None, *, twice=False):
        self.files = files
        self.moment = moment
        self.twice = twice
        self.seen = 0
        self.where = None

    def __enter__(self):
        super().__enter__()
        if self.twice:
            sys.setprofile(self._profile)
        return self

    def _call(self, frame, event, arg):
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._local

    def _local(self, frame, event, arg):
        if event == "opcode":
            self.seen += 1
            if self.seen == self.moment:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} +{frame.f_lasti}"
                raise KeyboardInterrupt
        return self._local

    def _profile(self, frame, event, arg):
        # An exception of the one that traces ends the tracing, but not this.
        if self.where is not None and event in ("call", "c_call") and frame.f_code.co_filename in self.files:
            self.where += f", then {frame.f_code.co_filename}:{frame.f_lineno} {event}"
            raise KeyboardInterrupt
