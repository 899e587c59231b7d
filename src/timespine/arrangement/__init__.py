"""Live indexes: rows in memory, sorted by some columns, merged in the background.

`Collection.arrange` makes an `Arrangement` of a collection. A `Spine` is the same for any stream of updates. `open`
reads what either of them saved in a folder.
"""

from timespine.arrangement.arrangement import Arrangement
from timespine.arrangement.batch.batch import Batch
from timespine.arrangement.batch.layout import Layout
from timespine.arrangement.opened_checkpoint import OpenedCheckpoint
from timespine.arrangement.opened_checkpoint import open_checkpoint as open
from timespine.arrangement.read.cursor import Cursor, CursorPosition
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.arrangement.spine.retention_filters import Keep, RowFilter, ValueFilter
from timespine.arrangement.spine.spine import Spine

__all__ = [
    "Arrangement",
    "ArrangementView",
    "Batch",
    "Cursor",
    "CursorPosition",
    "Keep",
    "Layout",
    "OpenedCheckpoint",
    "RowFilter",
    "Spine",
    "ValueFilter",
    "open",
]
