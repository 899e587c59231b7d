"""Credentials come from the usual places of each process: a profile, variables of Azure, and never an argument."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from servers.object_servers import ACCESS_KEY, SECRET_KEY

from timespine.errors import UsageError
from timespine.location.object_store.bucket import Bucket
from timespine.location.object_store.object_blob import ObjectBlob
from timespine.location.opening.store_location import parse_location

KEY = "Y2FuYXJ5IGtleSBvZiBBenVyZQ=="
"""A key of Azure, in base 64."""


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """A file with a right and a wrong profile, and no other credentials."""
    path = tmp_path / "credentials"
    path.write_text(
        f"[right]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
        f"[wrong]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = not-it\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def test_a_profile_gives_credentials(seaweed, profiles, monkeypatch):
    location = seaweed.location()
    monkeypatch.setenv("AWS_PROFILE", "right")
    blob = ObjectBlob(Bucket(location))
    blob.put("a/b/c", b"1")
    monkeypatch.setenv("AWS_PROFILE", "wrong")
    with pytest.raises(UsageError, match="credentials"):
        ObjectBlob(Bucket(location)).get("a/b/c")
    assert blob.get("a/b/c") == b"1"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)  # variables go before a profile
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert ObjectBlob(Bucket(location)).get("a/b/c") == b"1"


def test_a_profile_that_does_not_exist_is_one_clear_error(seaweed, profiles, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(UsageError, match="cannot be reached with the settings of this process"):
        ObjectBlob(Bucket(seaweed.location())).get("a/b/c")


def test_a_profile_without_boto3_says_what_to_install(seaweed, profiles, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "right")
    monkeypatch.setitem(sys.modules, "obstore.auth.boto3", None)
    with pytest.raises(UsageError, match="pip install boto3"):
        ObjectBlob(Bucket(seaweed.location())).get("a/b/c")


@pytest.fixture
def azure():
    """A server that has no blob, takes every one, and keeps the requests: an address, and a list of them."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            """Say nothing."""

        def do_GET(self):
            self.answer(404)

        def do_PUT(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(201)

        def answer(self, status):
            requests.append((self.command, self.path, dict(self.headers.items())))
            self.send_response(status)
            for name, value in {"ETag": '"1"', "Content-Length": "0", "x-ms-request-id": "1"}.items():
                self.send_header(name, value)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "account"),
    [("az://container/x", "fromvariable"), ("abfss://container@inurl.dfs.core.windows.net/x", "inurl")],
)
def test_azure_takes_the_account_of_the_location_or_of_the_environment(url, account, azure, monkeypatch):
    endpoint, requests = azure
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "fromvariable")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    blob = ObjectBlob(Bucket(parse_location(url, {"endpoint": endpoint, "allow_http": True})))
    assert blob.get("a/b/c") is None
    blob.put("a/b/c", b"1")
    assert [(command, path) for command, path, _ in requests] == [
        ("GET", "/container/x/blobs/a/b/c"),
        ("PUT", "/container/x/blobs/a/b/c"),
    ]
    for _, _, headers in requests:
        names = {name.lower(): value for name, value in headers.items()}
        assert names["authorization"].startswith(f"SharedKey {account}:")
        assert KEY not in str(names)
    assert names["if-none-match"] == "*"


def test_azure_without_an_account_is_one_clear_error(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError, match="cannot be reached with the settings of this process"):
        Bucket(parse_location("az://container/x", {})).objects()
