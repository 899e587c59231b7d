"""A checkpoint is read by any process, as it was saved, whatever its owner does meanwhile."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import threading

import pytest

import timespine as ts
from timespine.arrangement import manifest
from timespine.arrangement.manifest import delete_unless_pinned, pin_manifest
from timespine.columnar.schema.schema import define
from timespine.errors import CorruptionError, NotSealed, SinceError, StoreClosed, UsageError
from timespine.model.frontier import Frontier

SCHEMA = define({"id": "int64"}, {"name": "string"})


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "index")


def updates(time, first, last, name, diff=1):
    return [{"id": n, "name": name, "_time": time, "_diff": diff} for n in range(first, last)]


@pytest.fixture
def spine(folder):
    with ts.arrangement.Spine(SCHEMA, folder=folder) as made:
        made.insert(updates(0, 0, 100, "a"), upper=Frontier.at(1))
        made.insert([*updates(1, 5, 10, "a", -1), *updates(1, 5, 10, "b")], upper=Frontier.at(2))
        made.save()
        yield made


def names_in(folder, prefix=""):
    return sorted(name for name in os.listdir(folder) if name.startswith(prefix))


def test_a_checkpoint_gives_the_rows_that_were_saved(spine, folder):
    spine.insert(updates(2, 0, 1, "late"), upper=Frontier.at(3))
    with ts.arrangement.open(folder) as opened:
        assert opened.get(7) == [{"id": 7, "name": "b"}]
        assert opened.get_one({"id": 3}) == {"id": 3, "name": "a"}
        assert opened.get(0) == [{"id": 0, "name": "a"}]
        assert opened.get(1000) == []
        assert opened.fetch([4, 5]).column("name").to_pylist() == ["a", "b"]
        assert sum(table.num_rows for table in opened.scan()) == 100
        assert (opened.upper, opened.since) == (Frontier.at(2), None)
        assert opened.at((0,)).get({"id": 7}) == [({"id": 7, "name": "a"}, 1)]
        with pytest.raises(NotSealed):
            opened.at((2,))
        opened.verify()
        assert opened.metrics()["rows"] == 110
        assert opened.layout.by == ("id",)
    with pytest.raises(StoreClosed):
        opened.get(7)
    with pytest.raises(StoreClosed):
        opened.refresh()


def test_times_that_were_folded_cannot_be_read(spine, folder):
    spine.advance_since(Frontier.at(1))
    spine.save()
    with ts.arrangement.open(folder) as opened, pytest.raises(SinceError):
        opened.at((0,))


def test_refresh_opens_the_newest_checkpoint(spine, folder):
    with ts.arrangement.open(folder) as opened:
        assert not opened.refresh()
        spine.insert(updates(2, 200, 201, "new"), upper=Frontier.at(3))
        view = opened.at((1,))
        spine.save()
        assert opened.get(200) == []
        assert opened.refresh()
        assert opened.get(200) == [{"id": 200, "name": "new"}]
        assert view.get({"id": 200}) == []
        with pytest.raises(UsageError, match="another process or spine writes"):
            ts.arrangement.Spine(SCHEMA, folder=folder)


def test_an_open_checkpoint_keeps_its_files_and_a_closed_one_does_not(spine, folder):
    opened = ts.arrangement.open(folder)
    (first,) = names_in(folder, "manifest-")
    for n in range(5):
        spine.insert(updates(2 + n, 300 + n, 301 + n, "new"), upper=Frontier.at(3 + n))
        spine.complete_merges()
        spine.save()
    assert first in names_in(folder, "manifest-")
    assert len(names_in(folder, "manifest-")) == 3
    with ts.arrangement.open(folder, number=opened.number) as same:  # as an executor does
        assert same.get(7) == opened.get(7) == [{"id": 7, "name": "b"}]
        assert same.get(300) == []
    opened.close()
    spine.insert(updates(9, 400, 401, "new"), upper=Frontier.at(10))
    spine.save()
    assert first not in names_in(folder, "manifest-")
    assert len(names_in(folder, "manifest-")) == 2
    named = {
        file.name
        for number in manifest.manifest_numbers(folder)
        for file in manifest.read_manifest(folder, number).files
    }
    assert {name for name in names_in(folder) if name.endswith(".batch")} == named
    with pytest.raises(UsageError, match=r"checkpoint \d+ of .* was replaced by"):
        ts.arrangement.open(folder, number=opened.number)


def test_a_reader_that_dies_keeps_nothing(spine, folder):
    program = "import os, sys, timespine as ts; kept = ts.arrangement.open(sys.argv[1]); os._exit(0)"
    subprocess.run([sys.executable, "-c", program, folder], check=True, timeout=100)
    for n in range(3):
        spine.insert(updates(2 + n, 300 + n, 301 + n, "new"), upper=Frontier.at(3 + n))
        spine.save()
    assert len(names_in(folder, "manifest-")) == 2


def test_a_pin_outlives_the_owner(folder, spine):
    opened = ts.arrangement.open(folder)
    spine.close()
    for n in range(4):
        with ts.arrangement.Spine(SCHEMA, folder=folder) as again:
            again.insert(updates(2 + n, 300 + n, 301 + n, "new"), upper=Frontier.at(3 + n))
            again.complete_merges()
            again.save()
    with ts.arrangement.open(folder, number=opened.number) as same:
        assert same.get(7) == [{"id": 7, "name": "b"}]
        same.verify()


def test_a_manifest_that_is_deleted_while_it_is_pinned_is_not_used(spine, folder, monkeypatch):
    (number,) = manifest.manifest_numbers(folder)
    real = manifest._is_locked

    def deleted_first(fd):
        assert delete_unless_pinned(folder, number)
        monkeypatch.setattr(manifest, "_is_locked", real)
        spine.insert(updates(2, 300, 301, "new"), upper=Frontier.at(3))
        spine.save()
        return real(fd)

    monkeypatch.setattr(manifest, "_is_locked", deleted_first)
    pinned = pin_manifest(folder)
    assert pinned.stored.number > number
    assert not delete_unless_pinned(folder, pinned.stored.number)
    pinned.close()
    pinned.close()


def test_a_pickled_checkpoint_is_opened_again_in_the_other_process(spine, folder):
    with ts.arrangement.open(folder) as opened:
        again = pickle.loads(pickle.dumps(opened))
        assert again.number == opened.number
        assert again.get(7) == opened.get(7)
        again.close()


def test_readers_see_whole_checkpoints_while_the_owner_saves_and_merges(spine, folder):
    """Every checkpoint has n rows of generation n: a reader that mixes two of them sees another number."""
    stop = threading.Event()
    failures = []

    def read():
        draw = random.Random(1)
        try:
            with ts.arrangement.open(folder) as opened:
                while not stop.is_set():
                    if draw.random() < 0.7:
                        opened.refresh()
                    rows = [row for table in opened.scan({"id": 1000}) for row in table.to_pylist()]
                    last = opened.upper.time - 2
                    if [row["id"] for row in rows] != list(range(1000, 1000 + last)):
                        failures.append((opened.number, last, rows))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for n in range(60):
        spine.insert(updates(2 + n, 1000 + n, 1001 + n, "new"), upper=Frontier.at(3 + n))
        if n % 7 == 0:
            spine.complete_merges()
        spine.save()
    stop.set()
    for reader in readers:
        reader.join(100)
    assert not failures


def test_what_is_missing_or_damaged_is_an_error(spine, folder, tmp_path):
    with pytest.raises(UsageError, match="no folder"):
        ts.arrangement.open(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no checkpoint"):
        ts.arrangement.open(tmp_path / "empty")
    (name,) = names_in(folder, "manifest-")
    files = [name, *(each for each in names_in(folder) if each.endswith(".batch"))]
    for each in files:
        path = os.path.join(folder, each)
        with open(path, "rb") as file:
            whole = file.read()
        for place in range(0, len(whole), max(len(whole) // 50, 1)):
            data = bytearray(whole)
            data[place] ^= 0x10
            with open(path, "wb") as file:
                file.write(data)
            is_padding = False
            try:
                with ts.arrangement.open(folder) as opened:
                    opened.verify()
                    is_padding = whole[place] == 0
            except CorruptionError:
                continue
            except ts.VersionError:
                continue
            assert is_padding, (each, place)  # zeros between chunks are not read
        os.unlink(path)
        with pytest.raises((CorruptionError, UsageError)):
            ts.arrangement.open(folder)
        with open(path, "wb") as file:
            file.write(whole)
    with ts.arrangement.open(folder) as opened:
        opened.verify()
