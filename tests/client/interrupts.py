"""Interrupts at a chosen moment of a call: the n-th line or bytecode that the call runs in some files."""

import sys


class Interrupt:
    """Raises KeyboardInterrupt at one moment of the block, in the thread of the block; counts the moments.

    `twice` raises another one at the first call or return in those files after the first: in the cleanup.
    """

    def __init__(self, modules, moment=None, *, event="line", twice=False):
        self.files = {module.__file__ for module in modules}
        self.moment = moment
        self.event = event
        self.twice = twice
        self.seen = 0
        self.where = None

    def __enter__(self):
        self._before = sys.gettrace(), sys.getprofile()
        if self.twice:
            sys.setprofile(self._profile)
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before[0])
        sys.setprofile(self._before[1])

    def _call(self, frame, event, arg):
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = self.event == "opcode"
        frame.f_trace_lines = self.event == "line"
        return self._local

    def _local(self, frame, event, arg):
        if event == self.event:
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
