"""Create a collection from files, in one commit; with `replace`, under the name of another one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from timespine.client.arguments.argument_types import IfExists
from timespine.client.catalog.catalog import check_collection_name, with_taken_over, with_undone_create
from timespine.client.catalog.create_in_transaction import Definition
from timespine.client.collection import Collection
from timespine.client.commit.effect_driver import fresh_id
from timespine.client.load import parquet_or_delta
from timespine.client.write.prebuilt.bulk_load import bulk_load
from timespine.errors import TimespineError

if TYPE_CHECKING:
    from timespine.client.store import Store


def load_collection(
    store: Store,
    name: str,
    path: str | os.PathLike[str],
    define: Callable[[pa.Schema], Definition],
    progress: Callable[[int], None] | None,
    *,
    replace: bool,
    if_exists: IfExists,
) -> Collection:
    """Load files into a new collection, which `define` defines by the columns of the files."""
    store._committer.check_writable()
    arrow, batches = parquet_or_delta.open_source(path)
    definition = define(arrow)
    check_collection_name(name)
    if replace:
        store._check_replaceable(name)
    under = f"{name[:80]}.load-{fresh_id('')[:16]}" if replace else name
    collection, new = store._create(under, definition, replace=False, if_exists=if_exists)
    try:
        bulk_load(collection._handle, batches, progress)
        if replace:
            store._check_replaceable(name)
            store._catalog.change(partial(with_taken_over, collection.id, name))
            store._drop_service.close()
    except BaseException:
        if new:
            with contextlib.suppress(TimespineError):  # storage is unavailable: an empty collection stays
                if replace:
                    store._catalog.change(partial(with_undone_create, collection.id, under), frees_space=True)
                else:
                    store._drop_service.undo_create(collection.id, under)
        raise
    return store.collection(name) if replace else collection
