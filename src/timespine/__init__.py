"""Timespine keeps collections that change over time."""

__version__ = "0.1.0"

__all__ = ["__version__"]
