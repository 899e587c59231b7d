"""Secrets are found nowhere but where their owner put them."""

from __future__ import annotations

import json
import logging
import os
import pickle

import obstore
import pytest
from servers.fault_proxy import HttpFaults
from servers.object_servers import SECRET_KEY

import timespine as ts
from timespine.cli.error_report import report_error
from timespine.errors import TimespineError, WrongProcess
from timespine.location.object_store.bucket import Bucket
from timespine.location.opening import descriptor
from timespine.location.postgres.migration import migrate
from timespine.spark.blob_location import blob_location_of_store
from timespine.spark.options import Options
from timespine.spark.store_cache import address_of

PASSWORD = "canary-password-9876543210"
SECRETS = (SECRET_KEY, PASSWORD)
BLOBS = ts.Config(inline_part_bytes=1)


@pytest.fixture
def database(postgres, monkeypatch):
    """The address of a database, whose password is in the environment."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    name = postgres.make_database()
    migrate(postgres.conninfo(name))
    return postgres.conninfo(name)


def texts_of(error):
    """All that is shown of an error: its texts, and those of the errors that a traceback would show."""
    while error is not None:
        yield from (str(error), repr(error), repr(vars(error)))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def check_clean(found):
    for text in found:
        data = text if isinstance(text, bytes) else str(text).encode()
        for secret in SECRETS:
            assert secret.encode() not in data, data[:300]


def test_what_is_stored_sent_or_shown_has_no_secret(moto, database, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    url = moto.url()
    with ts.open(url, consensus=database, storage=moto.storage, maintenance=False, config=BLOBS) as store:
        made = store.create("c", key={"k": "int64"}, timeline="counter")
        made.append([{"k": number} for number in range(10_000)])
        shown = [store, made, store._context, store._context.blob, store._driver.consensus]
        address = address_of(store._context, "c")
        sent = [pickle.dumps(each) for each in (blob_location_of_store(store), address)]
        check_clean([*map(repr, shown), *map(str, shown), *sent, store.metrics(), address.options()])
        for unsendable in (store, made, store._context.blob, store._driver.consensus):
            with pytest.raises((WrongProcess, TypeError)):
                pickle.dumps(unsendable)
    bucket = Bucket(moto.location(url))
    objects = [each["path"] for page in obstore.list(bucket.objects(), bucket.path("")) for each in page]
    assert len(objects) >= 2
    check_clean(bytes(obstore.get(bucket.objects(), path).bytes()) for path in objects)
    stored = json.loads(bytes(obstore.get(bucket.objects(), bucket.path(descriptor.NAME)).bytes()))
    assert "@" not in stored["consensus"]["at"]
    check_clean([caplog.text, *capsys.readouterr()])


def failures_of(moto, seaweed, database, proxy):
    """Calls that fail, in as many ways as there are."""
    url = moto.url()
    unknown = {**seaweed.storage, "region": "us-east-1"}
    stored = {"consensus": database, "storage": moto.storage}
    yield lambda: ts.open(f"s3://key:{SECRET_KEY}@bucket/x")
    yield lambda: ts.open(f"s3://bucket/x?secret={SECRET_KEY}")
    yield lambda: ts.open(url, storage={"secret_access_key": SECRET_KEY})
    yield lambda: ts.open(url, consensus=database.replace("owner", f"owner:{PASSWORD}"), storage=moto.storage)
    yield lambda: ts.open(url, consensus=f"postgresql://127.0.0.1/x?password={PASSWORD}", storage=moto.storage)
    yield lambda: ts.open(url, consensus=database.rpartition("/")[0] + "/missing", storage=moto.storage)
    yield lambda: ts.open(url, consensus="postgresql://owner@127.0.0.1:1/x", storage=moto.storage)
    yield lambda: ts.open("s3://no-such-bucket-at-all/x", **stored)
    yield lambda: ts.open("s3://bucket/x", consensus=database, storage={**unknown, "skip_signature": True})
    proxy.faults.extend([("GET", 500)] * 10)
    yield lambda: ts.open(url, consensus=database, storage=moto.via(proxy.endpoint))
    proxy.faults.clear()
    proxy.faults.extend([("GET", 403)] * 10)
    yield lambda: ts.open(url, consensus=database, storage=moto.via(proxy.endpoint))
    proxy.faults.clear()
    for options in (
        {"path": f"s3://key:{SECRET_KEY}@bucket/x/c"},
        {"path": "s3://bucket/x/c", "storage.secret_access_key": SECRET_KEY},
        {"path": "s3://bucket/x/c", "storage.region": f"{SECRET_KEY} "},
        {"path": "s3://bucket/x/c", "consensus": f"postgresql://a:{PASSWORD}@host/x"},
    ):
        yield lambda options=options: Options(options).target


def test_no_error_repeats_a_secret(moto, seaweed, database, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    proxy = HttpFaults(moto.port)
    number = 0
    for call in failures_of(moto, seaweed, database, proxy):
        with pytest.raises(TimespineError) as failed:
            call()
        check_clean(texts_of(failed.value))
        check_clean([pickle.dumps(failed.value)])
        for debug in (True, False):
            report_error(failed.value, as_json=not debug, debug=debug)
        number += 1
    proxy.close()
    assert number == 15
    check_clean([caplog.text, *capsys.readouterr()])


def test_wrong_credentials_are_not_repeated_though_the_server_names_them(seaweed, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAUNKNOWNCANARY")
    with pytest.raises(TimespineError) as failed:
        ts.open(seaweed.url(), storage=seaweed.storage, consensus="sqlite:/unused")
    found = list(texts_of(failed.value))
    check_clean(found)
    assert not any("AKIAUNKNOWN" in text for text in found)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == PASSWORD
