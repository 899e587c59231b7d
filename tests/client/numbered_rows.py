"""Rows of one column, `n`, as tests compare them."""


def rows_of(collection):
    """The numbers of the newest snapshot, sorted."""
    return sorted(row["n"] for row in collection.snapshot().to_pylist())
