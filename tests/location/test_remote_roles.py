"""Processes of one machine share work for a store in a bucket too: one maintains, and one appends for the others."""

from __future__ import annotations

import contextlib
import os
import tempfile

import pytest

import timespine as ts
from timespine.client.commit import relay
from timespine.location.machine.remote_roles import RemoteRoles
from timespine.location.machine.role import EveryProcess
from timespine.location.postgres.migration import migrate

STORE = "6b6bfa32-9f4c-4b8e-9c5d-0a4e6f0d8f11"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of roles of this test."""
    own = tmp_path / "run"
    own.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    return own / f"timespine-roles-{os.getuid()}"


@pytest.fixture(params=["bucket", "postgresql"])
def opened(request, moto):
    """Open one store, as several processes do."""
    url, consensus = moto.url(), "bucket"
    if request.param == "postgresql":
        postgres = request.getfixturevalue("postgres")
        consensus = postgres.conninfo(postgres.make_database())
        migrate(consensus)
    with contextlib.ExitStack() as stores:

        def opening(**options):
            return stores.enter_context(ts.open(url, storage=moto.storage, consensus=consensus, **options))

        yield opening


def test_one_of_two_has_a_role_of_a_store_and_each_store_has_its_own(folder):
    one, two, other = RemoteRoles(STORE), RemoteRoles(STORE), RemoteRoles(STORE.replace("6b", "7c"))
    roles = [each.role("maintainer") for each in (one, two, other)]
    assert [role.take() for role in roles] == [True, False, True]
    roles[0].release()
    assert roles[1].take()
    assert os.stat(folder).st_mode & 0o777 == 0o700
    for role in roles:
        role.release()


def test_a_folder_that_others_can_enter_is_not_used(folder):
    folder.mkdir()
    folder.chmod(0o755)
    roles = RemoteRoles(STORE)
    assert isinstance(roles.role("maintainer"), EveryProcess)
    assert roles.channel("appender") is None
    folder.rmdir()
    folder.symlink_to(tempfile.mkdtemp())
    assert roles.channel("appender") is None


def test_without_a_runtime_folder_of_the_user_roles_are_among_temporary_files(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    role = RemoteRoles(STORE).role("maintainer")
    assert role.take()
    role.release()
    assert [path.name for path in tmp_path.glob("*/*.maintainer")] == [f"{STORE}.maintainer"]


def test_logs_of_no_store_have_no_roles():
    assert isinstance(RemoteRoles(None).role("maintainer"), EveryProcess)
    assert RemoteRoles(None).channel("appender") is None


def test_one_process_of_a_machine_maintains_a_store(opened):
    first, second = opened(maintenance=False), opened(maintenance=False)
    one, two = (store._driver.consensus.role("maintainer") for store in (first, second))
    assert (one.take(), two.take()) == (True, False)
    one.release()


def test_one_process_of_a_machine_commits_the_small_appends_of_the_other(opened, monkeypatch):
    monkeypatch.setattr(relay, "LOSSES", 0)
    monkeypatch.setattr(relay, "OWN_COMMITTERS", 0)
    first = opened(maintenance=False)
    log = first.create("log", key={"id": "int64"}, timeline="counter")
    for number in range(2):
        log.append([{"id": number}])
    assert first._committer.relay._is_appender
    second = opened(maintenance=False)
    second._committer.relay._channel._answer_s = 600.0
    log = second["log"]
    times = [log.append([{"id": number}]).time for number in range(2, 8)]
    assert second._committer.counters["handed over"] == 6
    assert sorted(row["id"] for row in first["log"].snapshot().to_pylist()) == list(range(8))
    assert times == sorted(set(times))
