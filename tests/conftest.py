"""Settings that all tests share."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import settings

# What an assertion of a module that tests share compared is told as well.
_SHARED = (path.stem for path in Path(__file__).parent.rglob("*.py") if not path.stem.startswith(("test_", "conftest")))
pytest.register_assert_rewrite(*_SHARED)
from assertions import examples  # noqa: E402

# A slow machine is not a failing property, and a failure must be repeatable by copying what it printed.
settings.register_profile("timespine", max_examples=examples(50), deadline=None, print_blob=True)
settings.load_profile("timespine")


@pytest.fixture(scope="session")
def servers_folder(tmp_path_factory):
    """The folder by which the test processes of one run find the servers that they share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def object_credentials():
    """The credentials of the object servers, in the environment as users have them."""
    from servers.object_servers import ACCESS_KEY, SECRET_KEY

    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


def _object_server(folder, name):
    from servers import object_servers
    from servers.shared_process import shared_server

    with shared_server(folder, name, getattr(object_servers, f"start_{name}")) as started:
        yield object_servers.ObjectServer(started)


@pytest.fixture(scope="session")
def moto(servers_folder, object_credentials):
    """An S3 server in Python."""
    yield from _object_server(servers_folder, "moto")


@pytest.fixture
def proxy(moto):
    """A proxy before that server, which breaks and counts requests."""
    from servers.fault_proxy import HttpFaults

    with contextlib.closing(HttpFaults(moto.port)) as made:
        yield made


@pytest.fixture(scope="session")
def seaweed(servers_folder, object_credentials):
    """SeaweedFS, an S3 server that checks signatures."""
    yield from _object_server(servers_folder, "seaweed")


@pytest.fixture(scope="session")
def rclone(servers_folder, object_credentials):
    """An S3 server that ignores conditions of writes."""
    yield from _object_server(servers_folder, "rclone")


@pytest.fixture(scope="session")
def postgres(servers_folder):
    """A PostgreSQL server."""
    from servers.postgres_server import PostgresServer, start_postgres
    from servers.shared_process import shared_server

    with shared_server(servers_folder, "postgres", start_postgres) as started:
        yield PostgresServer(started)
