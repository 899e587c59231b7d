"""Just enough of Thrift's compact protocol to take a Parquet footer apart, lie in it, and put it together again.

A struct is a dict of field id to (type, value); a list is a pair of the type of its elements and their values.
"""

from __future__ import annotations

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


class _Reader:
    def __init__(self, data):
        self.data = data
        self.place = 0

    def take(self, size):
        self.place += size
        return self.data[self.place - size : self.place]

    def varint(self):
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def value(self, type):
        if type in (TRUE, FALSE):
            return type == TRUE
        if type == BYTE:
            return self.take(1)
        if type in (I16, I32, I64):
            number = self.varint()
            return number >> 1 ^ -(number & 1)
        if type == DOUBLE:
            return self.take(8)
        if type == BINARY:
            return self.take(self.varint())
        if type in (LIST, SET):
            (head,) = self.take(1)
            count = head >> 4 if head >> 4 < 15 else self.varint()
            inside = head & 0x0F
            return inside, [self.take(1) == b"\x01" if inside in (1, 2) else self.value(inside) for _ in range(count)]
        return self.struct()

    def struct(self):
        fields, last = {}, 0
        while True:
            (head,) = self.take(1)
            if head == 0:
                return fields
            last = last + (head >> 4) if head >> 4 else self.value(I16)
            fields[last] = (head & 0x0F, self.value(head & 0x0F))


def decode(data):
    """The struct that these bytes are, all of them."""
    reader = _Reader(data)
    found = reader.struct()
    if reader.place != len(data):
        raise ValueError(f"{len(data) - reader.place} bytes are left over")
    return found


def _varint(number):
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _zigzag(number):
    return _varint((number << 1 ^ number >> 63) & (1 << 64) - 1)


def _value(type, value):
    if type in (TRUE, FALSE):
        return b""
    if type in (BYTE, DOUBLE):
        return value
    if type in (I16, I32, I64):
        return _zigzag(value)
    if type == BINARY:
        return _varint(len(value)) + value
    if type in (LIST, SET):
        inside, values = value
        head = (
            bytes((len(values) << 4 | inside,)) if len(values) < 15 else bytes((0xF0 | inside,)) + _varint(len(values))
        )
        if inside in (TRUE, FALSE):
            return head + bytes(1 if each else 2 for each in values)
        return head + b"".join(_value(inside, each) for each in values)
    return encode(value)


def encode(struct):
    """The bytes of a struct."""
    pieces, last = [], 0
    for field, (type, value) in sorted(struct.items()):
        kind = (TRUE if value else FALSE) if type in (TRUE, FALSE) else type
        pieces.append(bytes(((field - last) << 4 | kind,)) if field - last < 16 else bytes((kind,)) + _zigzag(field))
        pieces.append(_value(kind, value))
        last = field
    return b"".join(pieces) + b"\x00"
