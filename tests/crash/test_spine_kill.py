"""Kill -9 of a process that inserts into a spine, merges and saves: the newest checkpoint is whole, or an older one."""

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from crash.spine_worker import count, opened
from crash.test_kill import WORKER as OTHER

WORKER = Path(OTHER).with_name("spine_worker.py")
ROUNDS = 20


def killed_after(folder, memory, lines, delay_s):
    """Run the worker until it has saved some times and a moment more, and kill it; what it said was saved."""
    environment = {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(WORKER), str(folder), str(memory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        limit = threading.Timer(120, process.kill)
        limit.start()
        said = [process.stdout.readline() for _ in range(lines)]
        threading.Event().wait(delay_s)
        process.send_signal(signal.SIGKILL)
        rest, errors = process.communicate()
        limit.cancel()
    assert not errors, errors[-2000:]
    said += rest.splitlines()
    return max(int(line.split()[1]) for line in said if line.startswith("saved") and line.strip())


@pytest.mark.slow
def test_what_was_saved_survives_kills_during_saves_and_merges(tmp_path):
    chance = random.Random(5)
    saved = 0
    for number in range(ROUNDS):
        memory = (1 << 40, 500, 1)[number % 3]
        before = saved
        saved = killed_after(tmp_path, memory, chance.choice((1, 2, 5)), chance.random() * 0.05)
        assert saved > before
        with opened(str(tmp_path), 1 << 40) as spine:
            found = count(spine)
            assert found >= saved
            assert spine.is_dirty
            spine.complete_merges()
            assert count(spine) == found
    with opened(str(tmp_path), 1 << 40) as spine:
        spine.complete_merges()
        spine.save()
        spine.save()
    # What killed processes left behind is gone: two checkpoints of one file each at most.
    assert len(list(tmp_path.glob("*.batch"))) <= 2
    assert len(list(tmp_path.glob("manifest-*"))) == 2
    assert len(list(tmp_path.glob("files-*.json"))) == 2
