"""Programs to read and to run, from the root of the repository."""
