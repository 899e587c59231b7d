"""What tests of the batch builder share."""

from __future__ import annotations

import pyarrow as pa
from building import TINY, keys_in, leaves, read_part, updates_of

from timespine.columnar.kernels.key_encoding import encode_row
from timespine.columnar.parts.part_stats import PartMeta
from timespine.core.encoding.codec import decode_run


def check_references(batch, blob, schema, limit):
    """Lists are short, every blob is referred to, and references say what is true of what they refer to."""
    found = set(batch.keys)
    for run in batch.runs:
        assert len(run.parts) <= limit
        for part in run.parts:
            check_meta(part, [part] if not part.hollow else list(leaves([part], blob)), blob, schema)
    for key in keys_in(blob):
        if "/h" in key:
            children = decode_run(key, blob.get(key))
            assert len(children) <= limit
            found |= {child.key for child in children}
    assert found == set(keys_in(blob))


def check_meta(part, inside, blob, schema):
    meta = PartMeta.decode(part.meta)
    table = pa.concat_tables([read_part(each, blob, schema).select(schema.update_arrow.names) for each in inside])
    rows = [encode_row(table, index, schema.order_names) for index in range(table.num_rows)]
    times = [time for _, time, _ in updates_of(table, schema)]
    assert meta.lower == min(rows)[: TINY.bound_bytes]
    assert meta.upper is None or max(rows) <= meta.upper
    assert meta.min_time == tuple(map(min, zip(*times, strict=True)))
    assert meta.max_time == tuple(map(max, zip(*times, strict=True)))
    assert (meta.tail == 0) == (part.hollow or part.inline is not None)
