"""Live indexes: rows in memory, sorted by some columns, merged in the background.

`Collection.arrange` makes an `Arrangement` of a collection. A `Spine` is the same for any stream of updates. `open`
reads what either of them saved in a folder.
"""

from timespine.arrangement.arrangement import Arrangement
from timespine.arrangement.opened_checkpoint import OpenedCheckpoint
from timespine.arrangement.opened_checkpoint import open_checkpoint as open
from timespine.arrangement.read.cursor import Cursor
from timespine.arrangement.read.view_as_of import ArrangementView
from timespine.arrangement.spine.spine import Spine

__all__ = ["Arrangement", "ArrangementView", "Cursor", "OpenedCheckpoint", "Spine", "open"]
