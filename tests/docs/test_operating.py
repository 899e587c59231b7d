"""The page about operating names metrics, verbs and figures that exist."""

import re
from pathlib import Path

from typer.main import get_command

import timespine as ts
from timespine.cli.app import app
from timespine.client.catalog.drop_and_purge import FORGET_MS
from timespine.client.diagnostics.metrics import process_metrics
from timespine.client.diagnostics.prometheus import StoreCollector
from timespine.config import Config
from timespine.core.maintenance_policy import GARBAGE_MIN, KEPT_ROLLUPS, ROLLUPS
from timespine.location.opening.place import LOOK_S, REMOTE_LOOK_S

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operating.md").read_text()


def test_every_metric_to_alert_on_is_one_that_a_store_gives(tmp_path):
    named = set(re.findall(r"`timespine_(\w+)", PAGE))
    events = set(re.findall(r'event="([^"]+)"', PAGE))
    with ts.open(tmp_path) as store:
        store.create("orders", key={"id": "int64"}).append([{"id": 1}])
        given = {family.name.removeprefix("timespine_") for family in StoreCollector(store).collect()}
        assert events <= process_metrics(store).keys()
    assert {name.removesuffix("_total") for name in named} <= given
    assert {"merges_due", "events_total"} <= named


def test_every_verb_on_the_page_exists():
    verbs = get_command(app).commands.keys()
    assert set(re.findall(r"`timespine ([a-z-]+)", PAGE)) <= verbs
    assert {"copy", "promote", "restore", "fence", "keep-deleted"} <= verbs


def test_the_figures_on_the_page_are_those_of_the_code():
    assert f"1.5 * live + {ROLLUPS + 3} * s + {GARBAGE_MIN >> 10} KiB" in PAGE
    assert f"D + L + {KEPT_ROLLUPS + 3} * s" in PAGE
    assert f"keep_deleted * {KEPT_ROLLUPS + 1} / {KEPT_ROLLUPS}" in PAGE
    assert f"{Config().cache_bytes >> 20} MiB of decoded parts" in PAGE
    assert f"after {Config().reader_lease_ms // 60_000} minutes at most" in PAGE
    assert FORGET_MS == 24 * 3_600_000


def test_how_often_a_reader_looks_is_written_as_the_code_has_it():
    """Requests per look are counted by tests/client/read/test_waiting_cost.py."""
    assert (LOOK_S, REMOTE_LOOK_S) == (1 / 4, 1)
    assert f"looks each second in a bucket ({2 * 3600 / REMOTE_LOOK_S:,.0f} GET an hour)" in PAGE
    assert "without one it looks once a second" in (DOCS / "object-stores.md").read_text()
    guide = " ".join((DOCS / "guide.md").read_text().split())
    assert "reads the log of a folder four times a second" in guide
    assert "that of a bucket once" in guide
