"""One grammar for locations and for the addresses of logs. No message repeats what may be secret."""

import os

import pytest

import timespine as ts
from timespine.errors import UsageError
from timespine.location.opening.consensus_address import parse_consensus, to_conninfo
from timespine.location.opening.registry import PLACES, place_of
from timespine.location.opening.store_location import parse_location


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("/data/shop", "/data/shop"),
        ("/data/shop/", "/data/shop"),
        ("file:/data/shop", "/data/shop"),
        ("file:///data/shop", "/data/shop"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b=1/", "s3://bucket/a/b=1"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("S3://bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
        ("abfs://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
        ("memory://name/a", "memory://name/a"),
    ],
)
def test_locations_have_one_canonical_form(given, url):
    found = parse_location(given)
    assert found.url == url
    assert parse_location(found.url) == found
    assert place_of(found) is not None or found.scheme in PLACES


def test_paths_are_relative_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {parse_location(each).url for each in ("data", "./data", "file:data")} == {os.path.join(tmp_path, "data")}
    assert parse_location("a:b").url == os.path.join(tmp_path, "a:b")


@pytest.mark.parametrize(
    "given",
    [
        "hdfs://name/a",
        "hdfs:/a",
        "https://bucket.s3.amazonaws.com/a",
        "s3:/bucket/a",
        "s3://",
        "s3:///a",
        "s3://canary:canary@bucket/a",
        "s3://canary@bucket/a",
        "s3://bucket:9000/a",
        "s3://bucket/a?canary=1",
        "s3://bucket/a#canary",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/a b",
        "s3://bucket/" + "a" * 513,
        "abfss://box/a",
        "abfss://box:canary@account.dfs.core.windows.net/a",
        "/data\0",
        None,
        7,
    ],
)
def test_anything_else_is_refused_without_repeating_a_secret(given):
    with pytest.raises(UsageError) as refused:
        parse_location(given)
    assert "canary" not in str(refused.value)


def test_storage_options_are_a_list_without_credentials():
    found = parse_location(
        "s3://b/x", {"region": "eu-central-1", "endpoint": "https://[::1]:9000/", "allow_http": False}
    )
    assert dict(found.storage) == {"region": "eu-central-1", "endpoint": "https://[::1]:9000", "allow_http": "false"}
    assert parse_location("s3://b/x", dict(found.storage)) == found
    for wrong in (
        {"secret_access_key": "canary"},
        {"canary": "x"},
        {"endpoint": "https://user:canary@host"},
        {"endpoint": "https://host/path?canary"},
        {"endpoint": "http://host"},
        {"region": "canary canary"},
        {"allow_http": "canary"},
        {"region": True},
        "canary",
    ):
        with pytest.raises(UsageError) as refused:
            parse_location("s3://b/x", wrong)
        assert "canary" not in str(refused.value), wrong
    for elsewhere in ("/data", "memory://x"):
        with pytest.raises(UsageError, match="takes nothing"):
            parse_location(elsewhere, {"region": "x"})


def test_addresses_of_logs_have_one_canonical_form_without_user_and_password():
    found = parse_consensus("postgres://ada@db1:5432,db2:5432/shop")
    assert (found.kind, found.at) == ("postgresql", "postgresql://db1:5432,db2:5432/shop")
    assert to_conninfo(found) == "postgresql://ada@db1:5432,db2:5432/shop"
    assert to_conninfo(parse_consensus("postgresql:///shop")) == "postgresql:///shop"
    assert parse_consensus("sqlite:///a/b.db").at == "sqlite:/a/b.db" == parse_consensus("sqlite:/a/../a/b.db").at
    for wrong in (
        "postgresql://ada:canary@db/shop",
        "postgresql://db/shop?password=canary",
        "postgresql://db",
        "sqlite:relative",
        "mysql://canary@db/x",
        "bucket:canary",
        "host=db password=canary",
        7,
    ):
        with pytest.raises(UsageError) as refused:
            parse_consensus(wrong)
        assert "canary" not in str(refused.value), wrong


def test_a_store_in_memory_lives_as_long_as_the_process(tmp_path):
    url = f"memory://{tmp_path.name}"
    with pytest.raises(UsageError, match="no store"):
        ts.open(url, create=False)
    with ts.open(url) as store, ts.open(url) as other:
        store.create("c", key={"k": "int64"}, timeline="counter").append([{"k": 1}])
        assert other["c"].snapshot().to_pylist() == [{"k": 1}]
    with ts.open(url, create=False) as store:
        assert store["c"].count() == 1
    assert place_of(parse_location(url)).file_of("a/b/c") is None
    with pytest.raises(UsageError, match="one process"):
        place_of(parse_location(url)).open_blob(read_only=True)


@pytest.mark.parametrize("location", ["{folder}", "memory://logs-inside"])
def test_a_store_with_logs_of_its_own_takes_no_consensus(location, tmp_path):
    with pytest.raises(UsageError, match="leave out `consensus`"):
        ts.open(location.format(folder=tmp_path / "s"), consensus="postgresql://db/x")
    assert not (tmp_path / "s").exists()
