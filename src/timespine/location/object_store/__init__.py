"""Stores in a bucket of an object store: S3, Cloud Storage, Azure, and servers that speak like them."""
