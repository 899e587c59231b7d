"""Live indexes: rows in memory, sorted by some columns, merged in the background.

`Collection.arrange` makes an `Arrangement` of a collection. A `Spine` is the same for any stream of updates.
"""

from timespine.arrangement.arrangement import Arrangement
from timespine.arrangement.spine import Spine
from timespine.arrangement.view import ArrangementView

__all__ = ["Arrangement", "ArrangementView", "Spine"]
