"""The unit of an arrangement: sorted updates in chunks and batches, in memory or in mapped files."""
