"""Collections that change over time.

import timespine as ts

store = ts.open("./data")
orders = store.create("orders", key={"id": "int64"}, value={"total": "double"})
"""

from typing import TYPE_CHECKING

from timespine.first_use import import_names

if TYPE_CHECKING:
    from timespine.client.arguments.argument_types import (
        CreateOptions,
        FrameFunction,
        IfBehind,
        IfExists,
        KeyLike,
        LatePolicy,
        Multiplicity,
        Progress,
        Row,
        RowsLike,
        SchemaLike,
        SetLike,
        Timeline,
        Value,
        Verification,
        ViewEngine,
        ViewPolicy,
        ViewTimes,
    )
    from timespine.client.arguments.time_args import DurationLike, FrontierLike, PlainFrontier, TimeLike
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
    from timespine.client.diagnostics.prometheus import register_collector as register_collector
    from timespine.client.maintenance.maintenance_report import MaintenanceReport
    from timespine.client.maintenance.vacuum import VacuumResult
    from timespine.client.opening.open_store import open
    from timespine.client.read.change_set import Changes
    from timespine.client.read.follow.change_feed import ChangeFeed, FeedEvent
    from timespine.client.read.follow.commit_stream import CommitEvent, CommitStream
    from timespine.client.read.multi_snapshot import MultiSnapshot
    from timespine.client.read.rows import Rows, Snapshot, Updates
    from timespine.client.read.sealed_and_unsealed import Contents
    from timespine.client.read.user_holds import CriticalHold, Hold
    from timespine.client.store import Store
    from timespine.client.write.merge_builder import Merge
    from timespine.client.write.prebuilt.batch_writer import Writer
    from timespine.client.write.transaction import Transaction
    from timespine.client.write_results import CommitResult, SealResult, WriteResult
    from timespine.columnar.predicate.predicate import Predicate
    from timespine.columnar.predicate.where import Column, Where, col
    from timespine.columnar.schema.schema import Field, Schema, define
    from timespine.columnar.schema.types import TypeLike
    from timespine.columnar.write.batch_builder import AddResult, BatchBuilder
    from timespine.config import Config
    from timespine.core.batch import HollowBatch, Order, Part, Run
    from timespine.core.state import HistoryEntry
    from timespine.core.transitions import AppendResult, ExpireResult
    from timespine.errors import (
        ArrangementMisfit,
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
        InvalidCondition,
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
        UnsupportedType,
        UnsupportedView,
        UpperMismatch,
        UsageError,
        VersionError,
        WrongProcess,
    )
    from timespine.hints import Hint
    from timespine.model.description import Description
    from timespine.model.frontier import Frontier
    from timespine.views.follow.follow_thread import Following as Following
    from timespine.views.refresh.refresh_views import Refreshed as Refreshed
    from timespine.views.run_statement import StatementResult as StatementResult
    from timespine.views.view import View as View

__version__ = "0.1.0"

__all__ = [
    "AddResult",
    "Amplification",
    "AppendResult",
    "ArrangementHold",
    "ArrangementMisfit",
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
    "FrameFunction",
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
    "InvalidCondition",
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
    "PlainFrontier",
    "Predicate",
    "Progress",
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
    "UnsupportedType",
    "UnsupportedView",
    "Updates",
    "UpperMismatch",
    "UsageError",
    "VacuumResult",
    "Value",
    "Verification",
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
    "define",
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
    "ArrangementMisfit": "errors",
    "ArrangementHold": "client.arrangement_protocols",
    "ArrangementReads": "client.arrangement_protocols",
    "BatchAlreadyCommitted": "errors",
    "BatchBuilder": "columnar.write.batch_builder",
    "AddResult": "columnar.write.batch_builder",
    "BatchInfo": "client.diagnostics.inspect",
    "ChangeFeed": "client.read.follow.change_feed",
    "Changes": "client.read.change_set",
    "client": "",
    "ClosedError": "errors",
    "col": "columnar.predicate.where",
    "Collection": "client.collection",
    "CollectionExists": "errors",
    "CollectionInUse": "errors",
    "Column": "columnar.predicate.where",
    "columnar": "",
    "CommitEvent": "client.read.follow.commit_stream",
    "CommitResult": "client.write_results",
    "CommitStream": "client.read.follow.commit_stream",
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
    "CreateOptions": "client.arguments.argument_types",
    "CriticalHold": "client.read.user_holds",
    "define": "columnar.schema.schema",
    "Description": "model.description",
    "Determinate": "errors",
    "DiffOverflow": "errors",
    "DurationLike": "client.arguments.time_args",
    "errors": "",
    "examine": "client.diagnostics.doctor",
    "ExpireResult": "core.transitions",
    "FeedEvent": "client.read.follow.change_feed",
    "fence": "client.backup.fence_store",
    "Fenced": "errors",
    "Field": "columnar.schema.schema",
    "Finding": "client.diagnostics.doctor",
    "FindingKind": "client.diagnostics.doctor",
    "Following": "views.follow.follow_thread",
    "Frontier": "model.frontier",
    "FrontierLike": "client.arguments.time_args",
    "HandleExpired": "errors",
    "HealthReport": "client.diagnostics.doctor",
    "Hint": "hints",
    "hints": "",
    "HistoryEntry": "core.state",
    "Hold": "client.read.user_holds",
    "HollowBatch": "core.batch",
    "Run": "core.batch",
    "Part": "core.batch",
    "Order": "core.batch",
    "IfBehind": "client.arguments.argument_types",
    "IfExists": "client.arguments.argument_types",
    "IncompleteCopy": "errors",
    "Indeterminate": "errors",
    "InlineBudgetExceeded": "errors",
    "Inspection": "client.diagnostics.inspect",
    "InvalidCondition": "errors",
    "InvalidRows": "errors",
    "KeyLike": "client.arguments.argument_types",
    "LatePolicy": "client.arguments.argument_types",
    "LateRows": "errors",
    "LeaseExpired": "errors",
    "location": "",
    "MaintenanceReport": "client.maintenance.maintenance_report",
    "Merge": "client.write.merge_builder",
    "model": "",
    "Multiplicity": "client.arguments.argument_types",
    "MultiSnapshot": "client.read.multi_snapshot",
    "NameBlocked": "errors",
    "NoSpace": "errors",
    "NotSealed": "errors",
    "open": "client.opening.open_store",
    "OpenArrangement": "client.arrangement_protocols",
    "OwnedCollection": "errors",
    "PartInfo": "client.diagnostics.inspect",
    "PlainFrontier": "client.arguments.time_args",
    "Progress": "client.arguments.argument_types",
    "FrameFunction": "client.arguments.argument_types",
    "Verification": "client.arguments.argument_types",
    "Predicate": "columnar.predicate.predicate",
    "promote": "client.backup.copy_store",
    "ReadOnlyStore": "errors",
    "Refreshed": "views.refresh.refresh_views",
    "register_collector": "client.diagnostics.prometheus",
    "restore": "client.backup.restore_to_commit:restore_store",
    "RestorePoint": "client.backup.restore_to_commit",
    "RestoreResult": "client.backup.restore_to_commit",
    "Retention": "client.catalog.retention",
    "RetentionLike": "client.catalog.retention",
    "Row": "client.arguments.argument_types",
    "Rows": "client.read.rows",
    "RowsLike": "client.arguments.argument_types",
    "Schema": "columnar.schema.schema",
    "SchemaChanged": "errors",
    "SchemaConflict": "errors",
    "SchemaLike": "client.arguments.argument_types",
    "SealResult": "client.write_results",
    "SetLike": "client.arguments.argument_types",
    "SinceError": "errors",
    "Snapshot": "client.read.rows",
    "spark": "",
    "StatementResult": "views.run_statement",
    "Store": "client.store",
    "StoreClosed": "errors",
    "StoreFenced": "errors",
    "TimeLike": "client.arguments.time_args",
    "Timeline": "client.arguments.argument_types",
    "TimespineError": "errors",
    "Transaction": "client.write.transaction",
    "TypeLike": "columnar.schema.types",
    "Unavailable": "errors",
    "UnknownCollection": "errors",
    "UnsupportedType": "errors",
    "UnsupportedView": "errors",
    "Updates": "client.read.rows",
    "UpperMismatch": "errors",
    "UsageError": "errors",
    "VacuumResult": "client.maintenance.vacuum",
    "Value": "client.arguments.argument_types",
    "VersionError": "errors",
    "ViewEngine": "client.arguments.argument_types",
    "ViewPolicy": "client.arguments.argument_types",
    "View": "views.view",
    "views": "",
    "ViewTimes": "client.arguments.argument_types",
    "Where": "columnar.predicate.where",
    "Writer": "client.write.prebuilt.batch_writer",
    "WriteResult": "client.write_results",
    "WrongProcess": "errors",
}
"""The module of each public name.

`ts.spark` and `ts.views` need extras of the same names. So do `View`, `Refreshed`, `Following` and `StatementResult`
(`views`), and `register_collector` (`metrics`): they are not in `__all__`, so that `import *` works without extras.
"""

__getattr__ = import_names(__name__, _FROM)


def __dir__() -> list[str]:
    """List every public name, imported or not."""
    return sorted({*globals(), *_FROM})
