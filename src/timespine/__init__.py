"""Collections that change over time.

import timespine as ts

store = ts.open("./data")
orders = store.create("orders", key={"id": "int64"}, value={"total": "double"})
"""

from typing import TYPE_CHECKING

from timespine.first_use import import_names

if TYPE_CHECKING:
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
    from timespine.client.arrangement_protocols import ArrangementHold, OpenArrangement
    from timespine.client.backup.copy_store import CopyResult, copy, promote
    from timespine.client.backup.fence_store import fence
    from timespine.client.backup.restore_to_commit import RestorePoint, RestoreResult
    from timespine.client.backup.restore_to_commit import restore_store as restore
    from timespine.client.catalog.retention import Retention, RetentionLike
    from timespine.client.collection import Collection
    from timespine.client.diagnostics.amplification import Amplification
    from timespine.client.diagnostics.doctor import Finding, HealthReport, examine
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
    from timespine.columnar.write.batch_builder import BatchBuilder
    from timespine.config import Config
    from timespine.core.batch import HollowBatch
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
    "Amplification",
    "AppendResult",
    "ArrangementHold",
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
    "OwnedCollection",
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

_FROM = {
    "Amplification": "client.diagnostics.amplification",
    "AppendResult": "core.transitions",
    "arrangement": "",
    "ArrangementHold": "client.arrangement_protocols",
    "BatchAlreadyCommitted": "errors",
    "BatchBuilder": "columnar.write.batch_builder",
    "BatchInfo": "client.diagnostics.inspect",
    "ChangeFeed": "client.read.change_feed",
    "Changes": "client.read.change_set",
    "client": "",
    "ClosedError": "errors",
    "col": "columnar.predicate.where",
    "Collection": "client.collection",
    "CollectionExists": "errors",
    "CollectionInUse": "errors",
    "Column": "columnar.predicate.where",
    "columnar": "",
    "CommitEvent": "client.read.commit_stream",
    "CommitResult": "client.write_results",
    "CommitStream": "client.read.commit_stream",
    "ConcurrentWrite": "errors",
    "Config": "config",
    "config": "",
    "Conflict": "errors",
    "Contention": "errors",
    "Contents": "client.read.sealed_and_unsealed",
    "copy": "client.backup.copy_store",
    "CopyResult": "client.backup.copy_store",
    "core": "",
    "CorruptionError": "errors",
    "CreateOptions": "client.argument_types",
    "CriticalHold": "client.read.user_holds",
    "Description": "model.description",
    "Determinate": "errors",
    "DiffOverflow": "errors",
    "DurationLike": "client.time_args",
    "errors": "",
    "examine": "client.diagnostics.doctor",
    "ExpireResult": "core.transitions",
    "FeedEvent": "client.read.change_feed",
    "fence": "client.backup.fence_store",
    "Fenced": "errors",
    "Field": "columnar.schema.schema",
    "Finding": "client.diagnostics.doctor",
    "Frontier": "model.frontier",
    "FrontierLike": "client.time_args",
    "HandleExpired": "errors",
    "HealthReport": "client.diagnostics.doctor",
    "Hint": "hints",
    "hints": "",
    "HistoryEntry": "core.state",
    "Hold": "client.read.user_holds",
    "HollowBatch": "core.batch",
    "IfBehind": "client.argument_types",
    "IfExists": "client.argument_types",
    "IncompleteCopy": "errors",
    "Indeterminate": "errors",
    "InlineBudgetExceeded": "errors",
    "Inspection": "client.diagnostics.inspect",
    "InvalidRows": "errors",
    "KeyLike": "client.argument_types",
    "LatePolicy": "client.argument_types",
    "LateRows": "errors",
    "LeaseExpired": "errors",
    "location": "",
    "MaintenanceReport": "client.maintenance.maintenance_report",
    "Merge": "client.write.merge_builder",
    "model": "",
    "Multiplicity": "client.argument_types",
    "MultiSnapshot": "client.read.multi_snapshot",
    "NameBlocked": "errors",
    "NoSpace": "errors",
    "NotSealed": "errors",
    "open": "client.open_store",
    "OpenArrangement": "client.arrangement_protocols",
    "OwnedCollection": "errors",
    "PartInfo": "client.diagnostics.inspect",
    "Predicate": "columnar.predicate.predicate",
    "promote": "client.backup.copy_store",
    "ReadOnlyStore": "errors",
    "restore": "client.backup.restore_to_commit:restore_store",
    "RestorePoint": "client.backup.restore_to_commit",
    "RestoreResult": "client.backup.restore_to_commit",
    "Retention": "client.catalog.retention",
    "RetentionLike": "client.catalog.retention",
    "Row": "client.argument_types",
    "Rows": "client.read.rows",
    "RowsLike": "client.argument_types",
    "Schema": "columnar.schema.schema",
    "SchemaChanged": "errors",
    "SchemaConflict": "errors",
    "SchemaLike": "client.argument_types",
    "SealResult": "client.write_results",
    "SetLike": "client.argument_types",
    "SinceError": "errors",
    "Snapshot": "client.read.rows",
    "spark": "",
    "Store": "client.store",
    "StoreClosed": "errors",
    "StoreFenced": "errors",
    "TimeLike": "client.time_args",
    "Timeline": "client.argument_types",
    "TimespineError": "errors",
    "Transaction": "client.write.transaction",
    "TypeLike": "columnar.schema.types",
    "Unavailable": "errors",
    "UnknownCollection": "errors",
    "UnsupportedView": "errors",
    "Updates": "client.read.rows",
    "UpperMismatch": "errors",
    "UsageError": "errors",
    "VacuumResult": "client.maintenance.vacuum",
    "Value": "client.argument_types",
    "VersionError": "errors",
    "ViewEngine": "client.argument_types",
    "ViewPolicy": "client.argument_types",
    "views": "",
    "ViewTimes": "client.argument_types",
    "Where": "columnar.predicate.where",
    "Writer": "client.write.batch_writer",
    "WriteResult": "client.write_results",
    "WrongProcess": "errors",
}
"""The module of each public name. `ts.spark` and `ts.views` need extras of the same names."""

__getattr__ = import_names(__name__, _FROM)


def __dir__() -> list[str]:
    """List every public name, imported or not."""
    return sorted({*globals(), *_FROM})
