"""Simulated histories of real stores: the code that users run, under a scheduler and on storage that one seed decides.

- `scheduler`: real threads of which one runs at a time, virtual time, crashes and pauses
- `threads`: locks, conditions, threads and pools that wait in the scheduler
- `ports`: blob and consensus of one process, with faults
- `world`: every commit, and what it must mean to readers
"""
