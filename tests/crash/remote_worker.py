"""A process on a store in a bucket that is going to be killed, as its servers are: python remote_worker.py JSON."""

import json
import os
import random
import sys

import timespine as ts
from timespine.errors import Indeterminate, Unavailable

CONFIG = ts.Config(inline_part_bytes=600, inline_total_bytes=60_000, rollup_seqnos=16)


def say(*words):
    """One line in one write: a kill leaves it whole or unsaid."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def attempt(work, *words):
    """Do something, and say what came of it."""
    say("try", *words)
    try:
        work()
    except Indeterminate:
        say("doubt", *words)
    except Unavailable:
        say("not", *words)
    else:
        say("ack", *words)


def main(url, storage, consensus, seed):
    with ts.open(url, storage=storage, consensus=consensus, config=CONFIG) as store:
        rows, counters = store["rows"], store["counters"]
        for number in range(1 << 30):
            if number % 2:
                count = random.choice((1, 3, 60))
                made = [{"id": f"{seed}-{number}-{place}"} for place in range(count)]
                attempt(lambda made=made: rows.append(made), "append", seed, number, count)
            else:
                change = [{"k": seed, "n": number}]
                attempt(lambda change=change: counters.upsert(change), "upsert", seed, number, 1)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
