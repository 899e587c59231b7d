"""A collection and rows that tests of appends share."""

ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": None}, {"k": 2, "v": None}]
