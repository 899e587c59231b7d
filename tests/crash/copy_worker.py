"""Copies of a store that are killed at every write to the target: python copy_worker.py JSON.

Each run is a forked child of this process, which itself opens nothing. A child kills itself before or after its nth
write, by its own id. What the next ones find is printed, one line of JSON for each kill.
"""

import json
import os
import shutil
import signal
import sys

import timespine as ts
from timespine.location.bucket.consensus import BucketConsensus
from timespine.location.folder.local_blob import LocalBlob
from timespine.location.object_store.object_blob import ObjectBlob
from timespine.location.sqlite.sqlite_consensus import SqliteConsensus

WRITES = ("put", "delete", "delete_many", "compare_and_set", "truncate")
"""The calls of the ports that change the target."""


def in_child(work):
    """Run a function in a child; return its answer, None if the child was killed."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reads)
            os.write(writes, json.dumps(work()).encode())
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        answer = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None
    if status:
        raise RuntimeError("a copy failed, and was not killed")
    return json.loads(answer)


def die_at(number):
    """Let this process die before its nth write to the target, counted twice: even numbers before, odd ones after."""
    seen = [0]

    def dying(call):
        def called(*args, **options):
            for moment in (0, 1):
                if moment:
                    result = call(*args, **options)
                seen[0] += 1
                if seen[0] > number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        return called

    for adapter in (LocalBlob, SqliteConsensus, ObjectBlob, BucketConsensus):
        for name in WRITES:
            if hasattr(adapter, name):
                setattr(adapter, name, dying(getattr(adapter, name)))


def copied(origin, target, storage, number):
    """Copy the store, or die at the nth write."""
    if number is not None:
        die_at(number)
    done = ts.copy(origin, target, storage=storage, read_only=True)
    return {"blobs": done.blobs, "copied": done.copied_blobs}


def found(target, storage):
    """What readers find in the target: the rows, or that it is not complete, or that there is nothing."""
    try:
        with ts.open(target, storage=storage, read_only=True, create=False, maintenance=False) as store:
            there = len(list(store._context.blob.list_keys()))
            try:
                names = store.names()
            except ts.IncompleteCopy:
                return {"is": "incomplete", "blobs": there, "promoted": is_promoted(target, storage)}
            if not names:
                return {"is": "nothing", "blobs": there}
            rows = [[row["id"] for row in store[name].snapshot().to_pylist()] for name in sorted(names)]
            return {"is": "copy", "blobs": there, "rows": [sum(ids) for ids in rows]}
    except ts.UsageError as error:
        return {"is": "nothing", "blobs": 0, "says": str(error)}


def is_promoted(target, storage):
    try:
        ts.promote(target, storage=storage)
    except ts.UsageError:
        return False
    return True


def main(origin, before, targets, storage, step):
    """Kill copies into new targets, or into copies of the older copy `before`, until one has no write to die at."""
    for number in range(0, 10_000, step):
        target = targets.format(number)
        if before:
            shutil.copytree(before, target)
        is_over = in_child(lambda target=target, number=number: copied(origin, target, storage, number)) is not None
        told = {"number": number, "killed": in_child(lambda target=target: found(target, storage))}
        again = in_child(lambda target=target: [copied(origin, target, storage, None), found(target, storage)])
        told["again"], told["then"] = again
        print(json.dumps(told), flush=True)
        if is_over:
            break


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
