"""Simulated histories of spines: the protocols of arrangements, on naive batches and a folder that one seed decides.

- `naive_batches`: batches and merges that are obviously right
- `folder`: files that may be lost, full or fail
- `spine_checks`: what must hold at every step
- `spine_run`: one spine, its tasks, and how their effects are carried out
- `history`: users of spines, faults, crashes and the end
"""
