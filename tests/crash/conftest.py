"""Stores in servers that tests kill."""

from __future__ import annotations

import contextlib

import pytest
from servers.killable import killable_postgres, killable_seaweed

from timespine.location.postgres.migration import migrate


@pytest.fixture
def remote_place(request, object_credentials):
    """A store in servers of its own, and what kills each of them. The parameter says where its logs are."""
    with contextlib.ExitStack() as stack:
        seaweed = stack.enter_context(killable_seaweed())
        consensus, kills = "bucket", [seaweed.kill]
        if request.param != "bucket alone":
            postgres = stack.enter_context(killable_postgres())
            consensus = postgres.conninfo(postgres.make_database())
            migrate(consensus)
            kills.append(postgres.kill)
        yield {"url": seaweed.url(), "storage": seaweed.storage, "consensus": consensus}, kills
