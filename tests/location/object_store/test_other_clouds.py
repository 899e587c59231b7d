"""The same suites for `gs://`, against a server of these tests, and for `az://` and `abfss://`, against Azurite.

Azurite is on npm (`npm install azurite`), not on PyPI: its tests run where `azurite-blob` is on the PATH, or where
`AZURITE` names it. Neither Cloud Storage nor Azure itself was ever asked.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from assertions import until
from servers.cloud_storage import CloudStorage
from servers.shared_process import clean_environment, free_port

import timespine as ts
from timespine.errors import UsageError
from timespine.location.blob import Blob
from timespine.location.bucket.consensus import BucketConsensus
from timespine.location.bucket.obstore_objects import ObstoreObjects
from timespine.location.bucket.replica import CheckpointLimits
from timespine.location.object_store.bucket import Bucket
from timespine.location.object_store.object_blob import ObjectBlob
from timespine.location.opening.store_location import StoreLocation, parse_location
from timespine.testing.conformance import BlobConformance, ConsensusConformance

FEW = CheckpointLimits(slots=7, pack_bytes_small=200)

ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, from its documents."""


class Cloud:
    """Where locations of one scheme are."""

    def __init__(self, url: str, storage: dict[str, str | bool]) -> None:
        self._url, self.storage = url, storage

    def url(self) -> str:
        """A location that no other test has."""
        return self._url.format(prefix=uuid.uuid4().hex)

    def location(self) -> StoreLocation:
        return parse_location(self.url(), self.storage)


@pytest.fixture(scope="module")
def google() -> Iterator[Cloud]:
    server = CloudStorage()
    account = {"gcs_base_url": server.endpoint, "disable_oauth": True}
    account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
        patch.setenv("AWS_ALLOW_HTTP", "true")
        cloud = Cloud("gs://bucket/{prefix}", {})
        cloud.server = server  # type: ignore[attr-defined]
        yield cloud
    server.close()


@pytest.fixture(scope="module")
def azure() -> Iterator[str]:
    """The endpoint of Azurite, with a container."""
    program = os.environ.get("AZURITE") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite-blob: npm install azurite")
    folder, port = tempfile.mkdtemp(prefix="timespine-azurite-"), free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "-l", folder, "--silent", "--skipApiVersionCheck"]
    options.append("--disableTelemetry")
    server = subprocess.Popen(
        [program, *options], env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
            patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
            until(lambda: server.poll() is not None or _make_container(endpoint))
            assert server.poll() is None
            yield endpoint
    finally:
        server.kill()
        server.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _make_container(endpoint: str) -> bool:
    """Create the container by a signed request; False if the server is not ready."""
    import base64
    import hashlib
    import hmac
    import urllib.error
    import urllib.request
    from email.utils import formatdate

    date, version = formatdate(usegmt=True), "2021-08-06"
    path = f"/{ACCOUNT}/{ACCOUNT}/container\nrestype:container"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{path}"
    made = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(made).decode()}",
        "Content-Length": "0",
    }
    request = urllib.request.Request(f"{endpoint}/container?restype=container", method="PUT", headers=headers)
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except urllib.error.HTTPError as refused:
        return refused.code == 409
    except OSError:
        return False
    return True


AZURE_URLS = {
    "az": "az://container/{prefix}",
    "abfss": f"abfss://container@{ACCOUNT}.dfs.core.windows.net/{{prefix}}",
}


@pytest.fixture(params=["gs", "az", "abfss"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    if request.param == "gs":
        found: Cloud = request.getfixturevalue("google")
        return found
    endpoint = request.getfixturevalue("azure")
    return Cloud(AZURE_URLS[request.param], {"endpoint": endpoint, "allow_http": True})


class OnCloud(BlobConformance):
    rounds = 0.1
    cloud: Cloud
    places: dict[Path, StoreLocation]

    def make(self, tmp_path: Path) -> Blob:
        self.places[tmp_path] = self.cloud.location()
        return ObjectBlob(Bucket(self.places[tmp_path]))

    def reopen(self, tmp_path: Path) -> Blob | None:
        return ObjectBlob(Bucket(self.places[tmp_path]))


class LogsOnCloud(ConsensusConformance):
    rounds = 0.1
    cloud: Cloud
    places: dict[Path, StoreLocation]

    def make(self, tmp_path: Path) -> BucketConsensus:
        bucket = Bucket(self.places.setdefault(tmp_path, self.cloud.location()))
        return BucketConsensus(ObstoreObjects(bucket.objects(), bucket.path("logs/")), limits=FEW)

    reopen = make

    def make_pair(self, tmp_path: Path) -> tuple[BucketConsensus, BucketConsensus]:
        return self.make(tmp_path), self.make(tmp_path)


class TestBlobsOnGoogle(OnCloud):
    @pytest.fixture(autouse=True)
    def _cloud(self, google: Cloud) -> None:
        self.cloud, self.places = google, {}


class TestLogsOnGoogle(LogsOnCloud):
    @pytest.fixture(autouse=True)
    def _cloud(self, google: Cloud) -> None:
        self.cloud, self.places = google, {}


class TestBlobsOnAzure(OnCloud):
    @pytest.fixture(autouse=True)
    def _cloud(self, azure: str) -> None:
        self.cloud = Cloud(AZURE_URLS["az"], {"endpoint": azure, "allow_http": True})
        self.places = {}


class TestLogsOnAzure(LogsOnCloud):
    @pytest.fixture(autouse=True)
    def _cloud(self, azure: str) -> None:
        self.cloud = Cloud(AZURE_URLS["az"], {"endpoint": azure, "allow_http": True})
        self.places = {}


def test_a_store_is_made_written_and_read_by_its_location(cloud: Cloud) -> None:
    url = cloud.url()
    blobs = ts.Config(inline_part_bytes=1)
    with ts.open(url, storage=cloud.storage, maintenance=False, config=blobs) as store:
        made = store.create("c", key={"k": "int64"}, value={"v": "string"}, timeline="counter")
        made.append([{"k": number, "v": "a"} for number in range(3000)])
        made.upsert([{"k": 1, "v": "b"}, {"k": 4000, "v": "b"}])
        made.compact(wait=True)
        store.maintain(sweep=True)
    with ts.open(url, storage=cloud.storage, read_only=True) as store:
        assert store["c"].count() == 3001
        assert store["c"].lookup([{"k": 1}]).to_pylist() == [{"k": 1, "v": "b"}]
        assert store["c"].count(0) == 3000


def test_a_server_that_ignores_generations_is_refused(google: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    ts.open(url := google.url(), maintenance=False).close()
    put = google.server.put  # type: ignore[attr-defined]
    monkeypatch.setattr(google.server, "put", lambda name, data, condition: put(name, data, None))  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="ignores the condition"):
        ts.open(url, maintenance=False)
