"""Following a collection: which columns, when to save, and the read-only use of what was saved."""
