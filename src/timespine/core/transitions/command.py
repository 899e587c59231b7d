"""The base of all commands: a command that exists can be stored, and be read again.

A command is checked once, when it is made. Storage must be able to give back what a transition takes from it, so the
check is that of a decoder: encode the command, and decode the bytes as a struct of the same types. That struct has no
code of its own, so the check is one call of msgspec, and neither frontiers nor descriptions, which check themselves
when they are made, are made again.
"""

from __future__ import annotations

import functools
import operator
import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from timespine.errors import UsageError

COMMAND_BYTES_MAX = 16 << 20
"""The most bytes of one command: several of them still fit one entry of the log, so none spoils the group of others."""

_ENCODER = msgspec.msgpack.Encoder()


class Command(msgspec.Struct, frozen=True, array_like=True):
    """A request to a state. A command of wrong types, or over COMMAND_BYTES_MAX, raises UsageError when it is made."""

    def __post_init__(self) -> None:
        kind = type(self)
        try:
            encoded = _ENCODER.encode(self)
            _decoder_of(kind).decode(encoded)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"{kind.__name__} cannot be stored: {error}") from error
        if len(encoded) > COMMAND_BYTES_MAX:
            raise UsageError(f"{kind.__name__} of {len(encoded)} bytes is over {COMMAND_BYTES_MAX}")


@functools.cache
def _decoder_of(kind: type) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(_plain_type(kind))


@functools.cache
def _plain_type(annotation: Any) -> Any:
    """Return a type with the same encoding as another one, in which no struct has code of its own."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        hints = get_type_hints(annotation, include_extras=True)
        fields = [(name, _plain_type(hints[name])) for name in annotation.__struct_fields__]
        return msgspec.defstruct(annotation.__name__, fields, array_like=annotation.__struct_config__.array_like)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return Annotated[(_plain_type(arguments[0]), *arguments[1:])]
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_plain_type, arguments))
    if origin is not None:
        return origin[tuple(each if each is ... else _plain_type(each) for each in arguments)]
    return annotation
