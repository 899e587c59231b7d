"""Collections that change over time.

import timespine as ts

store = ts.open("./data")
orders = store.create("orders", key={"id": "int64"}, value={"total": "double"})
"""

from typing import Any

from timespine.client.argument_types import (
    CreateOptions,
    IfBehind,
    IfExists,
    KeyLike,
    LatePolicy,
    Multiplicity,
    Row,
    RowsLike,
    SchemaLike,
    SetLike,
    Timeline,
    Value,
    ViewEngine,
    ViewPolicy,
    ViewTimes,
)
from timespine.client.arrangement_protocols import ArrangementHold, ArrangementReads, OpenArrangement
from timespine.client.backup.copy_store import CopyResult, copy, promote
from timespine.client.backup.fence_store import fence
from timespine.client.backup.restore_to_commit import RestorePoint, RestoreResult
from timespine.client.backup.restore_to_commit import restore_store as restore
from timespine.client.catalog.retention import Retention, RetentionLike
from timespine.client.collection import Collection
from timespine.client.diagnostics.amplification import Amplification
from timespine.client.diagnostics.doctor import Finding, FindingKind, HealthReport, examine
from timespine.client.diagnostics.inspect import BatchInfo, Inspection, PartInfo
from timespine.client.maintenance.maintenance_report import MaintenanceReport
from timespine.client.maintenance.vacuum import VacuumResult
from timespine.client.open_store import open
from timespine.client.read.change_feed import ChangeFeed, FeedEvent
from timespine.client.read.change_set import Changes
from timespine.client.read.commit_stream import CommitEvent, CommitStream
from timespine.client.read.multi_snapshot import MultiSnapshot
from timespine.client.read.rows import Rows, Snapshot, Updates
from timespine.client.read.sealed_and_unsealed import Contents
from timespine.client.read.user_holds import CriticalHold, Hold
from timespine.client.store import Store
from timespine.client.time_args import DurationLike, FrontierLike, TimeLike
from timespine.client.write.batch_writer import Writer
from timespine.client.write.merge_builder import Merge
from timespine.client.write.transaction import Transaction
from timespine.client.write_results import CommitResult, SealResult, WriteResult
from timespine.columnar.predicate.predicate import Predicate
from timespine.columnar.predicate.where import Column, Where, col
from timespine.columnar.schema.schema import Field, Schema
from timespine.columnar.schema.types import TypeLike
from timespine.columnar.write.batch_builder import AddResult, BatchBuilder
from timespine.config import Config
from timespine.core.batch import HollowBatch, Order, Part, Run
from timespine.core.state import HistoryEntry
from timespine.core.transitions import AppendResult, ExpireResult
from timespine.errors import (
    BatchAlreadyCommitted,
    ClosedError,
    CollectionExists,
    CollectionInUse,
    ConcurrentWrite,
    Conflict,
    Contention,
    CorruptionError,
    Determinate,
    DiffOverflow,
    Fenced,
    HandleExpired,
    IncompleteCopy,
    Indeterminate,
    InlineBudgetExceeded,
    InvalidRows,
    LateRows,
    LeaseExpired,
    NameBlocked,
    NoSpace,
    NotSealed,
    OwnedCollection,
    ReadOnlyStore,
    SchemaChanged,
    SchemaConflict,
    SinceError,
    StoreClosed,
    StoreFenced,
    TimespineError,
    Unavailable,
    UnknownCollection,
    UnsupportedView,
    UpperMismatch,
    UsageError,
    VersionError,
    WrongProcess,
)
from timespine.hints import Hint
from timespine.model.description import Description
from timespine.model.frontier import Frontier

__version__ = "0.1.0"

__all__ = [
    "AddResult",
    "Amplification",
    "AppendResult",
    "ArrangementHold",
    "ArrangementReads",
    "BatchAlreadyCommitted",
    "BatchBuilder",
    "BatchInfo",
    "ChangeFeed",
    "Changes",
    "ClosedError",
    "Collection",
    "CollectionExists",
    "CollectionInUse",
    "Column",
    "CommitEvent",
    "CommitResult",
    "CommitStream",
    "ConcurrentWrite",
    "Config",
    "Conflict",
    "Contention",
    "Contents",
    "CopyResult",
    "CorruptionError",
    "CreateOptions",
    "CriticalHold",
    "Description",
    "Determinate",
    "DiffOverflow",
    "DurationLike",
    "ExpireResult",
    "FeedEvent",
    "Fenced",
    "Field",
    "Finding",
    "FindingKind",
    "Frontier",
    "FrontierLike",
    "HandleExpired",
    "HealthReport",
    "Hint",
    "HistoryEntry",
    "Hold",
    "HollowBatch",
    "IfBehind",
    "IfExists",
    "IncompleteCopy",
    "Indeterminate",
    "InlineBudgetExceeded",
    "Inspection",
    "InvalidRows",
    "KeyLike",
    "LatePolicy",
    "LateRows",
    "LeaseExpired",
    "MaintenanceReport",
    "Merge",
    "MultiSnapshot",
    "Multiplicity",
    "NameBlocked",
    "NoSpace",
    "NotSealed",
    "OpenArrangement",
    "Order",
    "OwnedCollection",
    "Part",
    "PartInfo",
    "Predicate",
    "ReadOnlyStore",
    "RestorePoint",
    "RestoreResult",
    "Retention",
    "RetentionLike",
    "Row",
    "Rows",
    "RowsLike",
    "Run",
    "Schema",
    "SchemaChanged",
    "SchemaConflict",
    "SchemaLike",
    "SealResult",
    "SetLike",
    "SinceError",
    "Snapshot",
    "Store",
    "StoreClosed",
    "StoreFenced",
    "TimeLike",
    "Timeline",
    "TimespineError",
    "Transaction",
    "TypeLike",
    "Unavailable",
    "UnknownCollection",
    "UnsupportedView",
    "Updates",
    "UpperMismatch",
    "UsageError",
    "VacuumResult",
    "Value",
    "VersionError",
    "ViewEngine",
    "ViewPolicy",
    "ViewTimes",
    "Where",
    "WriteResult",
    "Writer",
    "WrongProcess",
    "__version__",
    "col",
    "copy",
    "examine",
    "fence",
    "open",
    "promote",
    "restore",
]


def __getattr__(name: str) -> Any:
    """Load `ts.arrangement`, `ts.spark` and `ts.views` on first use. Spark and views need extras of the same names."""
    if name not in ("arrangement", "spark", "views"):
        raise AttributeError(f"module 'timespine' has no attribute {name!r}")
    import importlib

    return importlib.import_module(f"timespine.{name}")
