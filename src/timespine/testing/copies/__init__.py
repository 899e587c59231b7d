"""Simulated histories of copies and restores: a store, copies of it, and the commits that each of them must have.

- `origin_world`: the store, which may be restored in place and fenced
- `copy_world`: a copy, which must be one moment of the store
- `copy_ports`: places and ports of both
- `copy_users`, `copy_history`: users that copy, read copies and restore beside all others
"""
