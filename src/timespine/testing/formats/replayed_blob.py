"""Synchronous work on blobs, carried out as a protocol.

The columnar engine calls a Blob port and waits for the answer. A protocol yields
effects and is sent their results, so that the simulator can let something else
happen in between, let the effect fail, or let the process die. The two meet here
without a thread: the port records every call, and the work runs from its start again
whenever there is a new answer. It gets the recorded answers again.

    puts and deletes    are assumed to succeed, and carried out, in order, before the
                        work gets the next answer that it cannot guess; if one fails,
                        later calls of the work never happened
    gets                stop the work until the bytes are there

So a caller of the work sees every order of effects and failures that the work could
see on real storage, and nothing else: if it is deterministic, which is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from timespine.core.effects import DeleteBlobs, Effect, GetBlob, Protocol, PutBlob
from timespine.errors import TimespineError
from timespine.location.blob import BLOB_BYTES_MAX, Blob, BlobInfo
from timespine.location.checks import check_inside, check_size

T = TypeVar("T")


class _Unanswered(BaseException):
    """The work needs bytes that are not there yet. Only `replay_as_protocol` may catch it for good."""


@dataclass(slots=True)
class _Call:
    """One call of the work to storage, and its answer."""

    effect: Effect
    answer: Any = None
    error: TimespineError | None = None
    is_done: bool = False
    """Whether it was carried out; if not, the answer is a guess."""


class ReplayedBlob(Blob):
    """The Blob port that the work sees: answers from the calls before, guesses for those after."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        """The calls in order, from the start of the work on."""
        self._next = 0
        self._fetched: dict[str, bytes | None] = {}
        self._is_stopped = False

    def rewind(self) -> None:
        """Begin the work again."""
        self._next, self._fetched, self._is_stopped = 0, {}, False

    def forget_after(self, call: _Call) -> None:
        """Drop the calls after one whose answer was another than guessed: they never happened."""
        del self.calls[self.calls.index(call) + 1 :]

    def put(self, key: str, value: bytes) -> None:
        self._called(PutBlob(key, value))

    def get(self, key: str, *, max_bytes: int = BLOB_BYTES_MAX) -> bytes | None:
        value = self._value(key)
        if value is not None:
            check_size(key, len(value), max_bytes)
        return value

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        value = self._value(key)
        if value is None:
            return None
        check_inside(key, stop, len(value))
        return value[start:stop]

    def delete(self, key: str) -> bool:
        self._fetched.pop(key, None)
        self._called(DeleteBlobs((key,)))
        return True

    def list_keys(self, prefix: str = "") -> Iterator[BlobInfo]:
        raise NotImplementedError("replayed work lists no blobs")

    def close(self) -> None:
        return None

    def _value(self, key: str) -> bytes | None:
        """Fetch the bytes of a blob, once: they do not change while it exists."""
        if key not in self._fetched:
            self._fetched[key] = self._called(GetBlob(key))
        return self._fetched[key]

    def _called(self, effect: Effect) -> Any:
        if self._is_stopped:
            # SUBTLE: calls of cleanup after the stop are not recorded: they will not happen.
            raise _Unanswered
        if self._next == len(self.calls):
            self.calls.append(_Call(effect))
            if isinstance(effect, GetBlob):
                self._is_stopped = True
                raise _Unanswered
        call = self.calls[self._next]
        if call.effect != effect:
            raise AssertionError(f"work that is not deterministic: {call.effect!r:.200}, and now {effect!r:.200}")
        self._next += 1
        if call.error is not None:
            raise call.error
        return call.answer


def replay_as_protocol(work: Callable[[Blob], T]) -> Protocol[T]:
    """Carry out work that calls a Blob port; return its result, or raise its error."""
    overlay = ReplayedBlob()
    while True:
        overlay.rewind()
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work(overlay)
        except (_Unanswered, Exception) as raised:
            error = raised
        went_as_guessed = True
        for call in [each for each in overlay.calls if not each.is_done]:
            call.is_done = True
            try:
                call.answer = yield call.effect
            except TimespineError as raised:
                call.error = raised
            if call.error is not None or isinstance(call.effect, GetBlob):
                overlay.forget_after(call)
                went_as_guessed = False
                break
        if not went_as_guessed:
            continue
        if error is not None:
            raise error
        return result  # type: ignore[return-value]
