"""Batches that merge themselves in the background."""
