"""The mathematics: times, frontiers, descriptions, and the naive oracle."""

from timespine.model.description import Description
from timespine.model.frontier import CLOSED, Frontier, advance_by
from timespine.model.time import Time

__all__ = ["CLOSED", "Description", "Frontier", "Time", "advance_by"]
