"""Copies of stores, and stores as they were: see `copy_store` and `restore_store`."""
