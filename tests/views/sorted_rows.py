"""The rows of a view, for comparisons."""


def rows(view, **options):
    """Read the rows of a view in an order that does not depend on how they are stored."""
    return sorted(view.snapshot(**options).to_pylist(), key=repr)
