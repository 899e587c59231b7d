"""A process of its own for large background merges."""
