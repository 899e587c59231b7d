"""Which encoding for states and diffs: time and size of the same values in each.

    python -m bench.codec [--batches 10000] [--json FILE]

Two values: the diff of one append to a collection of many batches, and that
whole collection as a rollup holds it. "typed" is from our structs to bytes and
from bytes to checked structs, which is what a commit and an open cost. "bare"
is between bytes and plain lists and dicts, for libraries that know no structs:
what is left if other code did the conversion for nothing.

JSON has no arrays as keys of maps and no bytes, so for it maps by id become
lists of pairs and bytes become base64. Libraries that are not installed are
left out: `pip install msgpack cbor2` brings them in.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib
import json
import os
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from timespine.core.batch import HollowBatch, Part, Run
from timespine.core.encoding.codec import StateImage, image_of
from timespine.core.encoding.flat_spine import FlatSpine, Id, SpineBatchHeader, SpineMergeHeader
from timespine.core.encoding.state_diff import SpineDiff, StateDiff, diff
from timespine.core.state import Claim, State, new_state
from timespine.core.transitions import CompareAndAppend, RegisterCommitter, RegisterWriter, apply
from timespine.model import Description, Frontier

ROWS = 100
"""Updates per append."""


class Subject(NamedTuple):
    """One value, as each library needs it."""

    name: str
    value: Any
    """Structs with maps by id."""
    paired: Any
    """Structs with lists of pairs instead."""


class Figures(NamedTuple):
    """What one library needs for one value."""

    codec: str
    subject: str
    encode_us: float
    decode_us: float
    bare_encode_us: float | None
    bare_decode_us: float | None
    size: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, default=10_000, help="in the collection")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    print("                                         typed us           bare us")
    print("value           codec             encode    decode    encode    decode     bytes")
    results = []
    for subject in subjects(options.batches):
        for name, measure in CODECS.items():
            with contextlib.suppress(ImportError):
                figures = measure(name, subject)
                results.append(figures)
                print(line(figures), flush=True)
    if options.json:
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "msgspec": msgspec.__version__}
        with open(options.json, "w", encoding="utf-8") as file:
            rows = [figures._asdict() for figures in results]
            json.dump({"bench": "codec", "batches": options.batches, "machine": machine, "results": rows}, file)


def line(figures: Figures) -> str:
    """One line of the table."""
    numbers = (figures.encode_us, figures.decode_us, figures.bare_encode_us, figures.bare_decode_us)
    cells = "".join(f"{'-' if each is None else format(each, '.1f'):>10}" for each in numbers)
    return f"{figures.subject:15} {figures.codec:15}{cells}{figures.size:10}"


def subjects(batches: int) -> list[Subject]:
    """The diff of one append, and the whole state, of a collection with that many unmerged batches."""
    state = committed(
        new_state("orders"), RegisterWriter("w" + "0" * 32, 3_600_000), RegisterCommitter("k" + "0" * 32, 3_600_000)
    )
    for number in range(batches):
        state = appended(state, number)
    # Two in three appends only add one batch and fuel some merges: take the typical one, not the cheapest.
    sizes = []
    for number in range(batches, batches + 64):
        later = appended(state, number)
        change = diff(state, later)
        sizes.append((len(msgspec.msgpack.encode(change)), number, change))
        state = later
    typical = sorted(sizes, key=lambda each: each[:2])[len(sizes) // 2][2]
    return [
        Subject("diff", typical, paired_diff(typical)),
        Subject(f"state, {batches}", image_of(state), paired_image(image_of(state))),
    ]


def committed(state: State, *commands: Any) -> State:
    """The state after some commands, as one commit."""
    seqno = state.seqno
    for command in commands:
        state = apply(state, command, 1_700_000_000_000).state  # type: ignore[union-attr]
    return msgspec.structs.replace(state, seqno=seqno + 1)


def appended(state: State, number: int) -> State:
    """The state with one batch more, in a blob of its own."""
    lower, upper = Frontier.at(number), Frontier.at(number + 1)
    part = Part(f"orders/w{'0' * 32}/p{number:032x}", ROWS, 4096, ROWS)
    batch = HollowBatch(Description(lower, upper, Frontier.at(0)), ROWS, (Run((part,)),))
    return committed(state, CompareAndAppend((batch,), lower, upper))


# The same structs with lists of pairs where JSON cannot have a map.

Pairs = tuple[tuple[Id, HollowBatch], ...]
PairedSpineDiff = msgspec.defstruct(
    "PairedSpineDiff",
    [
        ("s", Frontier | None, None),
        ("a", Pairs, ()),
        ("d", tuple[Id, ...], ()),
        ("b", tuple[tuple[Id, SpineBatchHeader], ...], ()),
        ("m", tuple[tuple[Id, SpineMergeHeader | None], ...], ()),
    ],
    frozen=True,
    omit_defaults=True,
)
PairedSpine = msgspec.defstruct(
    "PairedSpine",
    [
        ("since", Frontier),
        ("hollow", Pairs),
        ("batches", tuple[tuple[Id, SpineBatchHeader], ...]),
        ("merges", tuple[tuple[Id, SpineMergeHeader], ...]),
    ],
    frozen=True,
    array_like=True,
)


def _with_fields(name: str, kind: type[msgspec.Struct], **changed: Any) -> type[msgspec.Struct]:
    """A struct like another one, with other types for some fields."""
    fields: list[Any] = []
    for each in msgspec.structs.fields(kind):
        declared = changed.get(each.name, each.type)
        if each.default is not msgspec.NODEFAULT:
            fields.append((each.name, declared, each.default if each.name not in changed else None))
        elif each.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=each.default_factory if each.name not in changed else tuple)
            fields.append((each.name, declared, default))
        else:
            fields.append((each.name, declared))
    return msgspec.defstruct(name, fields, frozen=True, omit_defaults=True, kw_only=True)


PairedDiff = _with_fields("PairedDiff", StateDiff, t=PairedSpineDiff | None, claims=tuple[tuple[Id, Claim], ...])
PairedImage = _with_fields("PairedImage", StateImage, trace=PairedSpine, claims=tuple[tuple[Id, Claim], ...])


def paired_diff(change: StateDiff) -> Any:
    """A diff with pairs."""
    spine: SpineDiff | None = change.t
    fields = {name: getattr(change, name) for name in StateDiff.__struct_fields__ if name != "t"}
    fields["claims"] = tuple(change.claims.items())
    if spine is None:
        return PairedDiff(**fields)
    pairs = (tuple(table.items()) for table in (spine.a, spine.b, spine.m))
    added, batches, merges = pairs
    return PairedDiff(**fields, t=PairedSpineDiff(spine.s, added, spine.d, batches, merges))


def paired_image(image: StateImage) -> Any:
    """A state with pairs."""
    flat: FlatSpine = image.trace
    fields = {name: getattr(image, name) for name in StateImage.__struct_fields__ if name != "trace"}
    fields["claims"] = tuple(image.claims.items())
    tables = (tuple(table.items()) for table in (flat.hollow, flat.batches, flat.merges))
    return PairedImage(**fields, trace=PairedSpine(flat.since, *tables))


# The libraries.


def msgspec_msgpack(codec: str, subject: Subject) -> Figures:
    """MessagePack, from and to structs."""
    value = subject.value
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(type(value)).decode
    data = encode(value)
    require(decode(data) == value)
    return Figures(codec, subject.name, us(lambda: encode(value)), us(lambda: decode(data)), None, None, len(data))


def msgspec_json(codec: str, subject: Subject) -> Figures:
    """JSON, from and to structs."""
    value = subject.paired
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(type(value)).decode
    data = encode(value)
    require(decode(data) == value)
    return Figures(codec, subject.name, us(lambda: encode(value)), us(lambda: decode(data)), None, None, len(data))


def plain(
    codec: str, subject: Subject, encode: Callable[[Any], Any], decode: Callable[[Any], Any], as_json: bool = False
) -> Figures:
    """A library that knows lists and dicts only, with our structs on both sides of it."""
    value = subject.paired if as_json else subject.value
    kind = type(value)
    kept = () if as_json else (bytes,)

    def to_tree() -> Any:
        return msgspec.to_builtins(value, builtin_types=kept, str_keys=as_json)

    def to_value(tree: Any) -> Any:
        return msgspec.convert(tree, kind, builtin_types=kept, str_keys=as_json)

    tree = to_tree()
    data = encode(tree)
    require(to_value(decode(data)) == value)
    return Figures(
        codec,
        subject.name,
        us(lambda: encode(to_tree())),
        us(lambda: to_value(decode(data))),
        us(lambda: encode(tree)),
        us(lambda: decode(data)),
        len(data),
    )


def msgpack(codec: str, subject: Subject) -> Figures:
    """The package msgpack."""
    library = importlib.import_module("msgpack")

    def decode(data: bytes) -> Any:
        return library.unpackb(data, use_list=False, strict_map_key=False)

    return plain(codec, subject, library.packb, decode)


def cbor2(codec: str, subject: Subject) -> Figures:
    """The package cbor2."""
    library = importlib.import_module("cbor2")
    return plain(codec, subject, library.dumps, library.loads)


def standard_json(codec: str, subject: Subject) -> Figures:
    """The json of the standard library."""

    def encode(tree: Any) -> bytes:
        return json.dumps(tree, separators=(",", ":"), default=base64.b64encode).encode()

    return plain(codec, subject, encode, json.loads, as_json=True)


CODECS: dict[str, Callable[[str, Subject], Figures]] = {
    "msgspec.msgpack": msgspec_msgpack,
    "msgspec.json": msgspec_json,
    "msgpack": msgpack,
    "cbor2": cbor2,
    "json": standard_json,
}


def require(condition: bool) -> None:
    """What is measured must work."""
    if not condition:
        raise SystemExit("a value did not come back as it was")


def us(action: Callable[[], object], seconds: float = 0.6) -> float:
    """Microseconds per call: the median of seven rounds."""
    begun = time.perf_counter()
    action()
    once = max(time.perf_counter() - begun, 1e-7)
    calls = max(int(seconds / 7 / once), 1)
    rounds = []
    for _ in range(7):
        begun = time.perf_counter()
        for _ in range(calls):
            action()
        rounds.append((time.perf_counter() - begun) / calls)
    return 1e6 * sorted(rounds)[len(rounds) // 2]


if __name__ == "__main__":
    main()
