"""Logs in PostgreSQL keep the contract of the port, also when requests and replies get lost."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from assertions import until
from servers.fault_proxy import StreamFaults

from timespine.location.consensus import Consensus
from timespine.location.postgres.connections import LimitedConnection
from timespine.testing.conformance import ConsensusConformance, ConsensusUnderFaults
from timespine.testing.conformance.faults import REFUSED, REPLY_LOST, REQUEST_LOST


class TestOnPostgres(ConsensusConformance):
    @pytest.fixture(autouse=True)
    def _server(self, make_log):
        self.make_log, self.stores = make_log, {}

    def make(self, tmp_path: Path) -> Consensus:
        self.stores[tmp_path] = str(uuid.uuid4())
        return self.make_log(self.stores[tmp_path])

    def reopen(self, tmp_path: Path) -> Consensus | None:
        return self.make_log(self.stores[tmp_path])

    def make_pair(self, tmp_path: Path) -> tuple[Consensus, Consensus]:
        store = str(uuid.uuid4())
        return self.make_log(store), self.make_log(store)


class TestOnPostgresUnderFaults(ConsensusUnderFaults):
    refuses_children = True
    limit_s = 1.0

    @pytest.fixture(autouse=True)
    def _server(self, make_log, postgres):
        self.make_log = make_log
        self.proxy = StreamFaults(postgres.port)
        yield
        self.proxy.close()

    def make(self, tmp_path: Path) -> Consensus:
        return Healed(self.make_log(port=self.proxy.port, call_s=0.5), self.proxy)

    def break_next(self, adapter: Any, kind: str) -> bool:
        modes = {REQUEST_LOST: "drop request", REPLY_LOST: "drop reply"}
        if kind == REFUSED:
            return False
        self.proxy.mode = modes[kind]
        return True

    def hang(self, adapter: Any) -> contextlib.AbstractContextManager[Any]:
        @contextlib.contextmanager
        def hanging() -> Iterator[Any]:
            expired: list[float] = []
            wait = LimitedConnection.wait

            def counted(self: Any, *args: Any, **options: Any) -> Any:
                try:
                    return wait(self, *args, **options)
                finally:
                    expired.extend([self.limit_s] * self.expired)

            self.proxy.mode = "hang"
            adapter.heals = False
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LimitedConnection, "wait", counted)
                yield lambda: sum(expired)
            assert expired, "no wait for the server came to its limit"
            until(lambda: self.proxy.ended)
            assert set(self.proxy.ended) == {"client"}
            self.proxy.heal()

        return hanging()


class Healed:
    """An adapter whose proxy breaks one call: what it says to the next call is true again."""

    def __init__(self, inner: Consensus, proxy: StreamFaults) -> None:
        self._inner, self._proxy = inner, proxy
        self.heals = True

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def called(*args: Any, **options: Any) -> Any:
            try:
                return method(*args, **options)
            finally:
                if self.heals:
                    self._proxy.heal()

        return called
