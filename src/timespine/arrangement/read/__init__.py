"""Reading some batches of an arrangement as of a time."""
