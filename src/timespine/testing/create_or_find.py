"""The creation of one collection without a catalog, for simulated processes and tests of protocols."""

from __future__ import annotations

from timespine.core.effects import CompareAndSet, Protocol
from timespine.core.encoding.codec import encode_state
from timespine.core.protocols.load_state import refresh_state
from timespine.core.protocols.session import Session, retry
from timespine.core.spine.layers import MergePolicyKind
from timespine.core.state import State, new_state
from timespine.errors import Unavailable, UsageError


def create_or_find(
    session: Session, collection: str, arity: int = 1, merging: MergePolicyKind = MergePolicyKind.FUELED
) -> Protocol[State]:
    """Create a collection, or find the existing one, which must have that arity."""
    first = encode_state(new_state(collection, arity, merging))
    # A lost reply is harmless: some process created the collection, and its state is read back.
    yield from retry(session, CompareAndSet(((collection, None, first),)))
    state = yield from refresh_state(session, collection)
    if state is None:
        raise Unavailable(f"collection {collection} was created and does not exist: storage is not linearizable")
    if state.arity != arity:
        raise UsageError(f"collection {collection} has times of {state.arity} coordinates, not {arity}")
    return state
