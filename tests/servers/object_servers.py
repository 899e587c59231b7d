"""Servers that speak S3: moto, SeaweedFS, and rclone, which ignores the conditions of writes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import uuid
import warnings
from pathlib import Path

from servers.shared_process import SCRIPTS, Started, clean_environment, free_port, wait_until

from timespine.location.opening.store_location import StoreLocation, parse_location

ACCESS_KEY, SECRET_KEY = "AKIACANARYCANARY", "canary-secret-key-0123456789"
"""The credentials of the servers. No test may find the second anywhere but in its own environment."""

BUCKET = "bucket"


def start_moto(folder: Path) -> Started:
    port = free_port()
    command = [sys.executable, str(Path(__file__).parent / "atomic_moto.py"), "-H", "127.0.0.1", "-p", str(port)]
    return _started(folder, command, port)


def start_seaweed(folder: Path) -> Started:
    return run_seaweed(folder, [free_port() for _ in range(8)])


def run_seaweed(folder: Path, ports: list[int]) -> Started:
    """Start the server of a folder, which may have been killed."""
    master, volume, filer, port, *grpc = ports
    rights: dict[str, object] = {"credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}], "name": "tests"}
    config = folder / "s3.json"
    config.write_text(
        json.dumps({"identities": [{**rights, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]})
    )
    command = [
        *(str(SCRIPTS / "weed"), "server", "-dir", str(folder), "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1"),
        *(f"-master.port={master}", f"-master.port.grpc={grpc[0]}"),
        *(f"-volume.port={volume}", f"-volume.port.grpc={grpc[1]}"),
        *(f"-filer.port={filer}", f"-filer.port.grpc={grpc[2]}"),
        *("-s3", f"-s3.port={port}", f"-s3.port.grpc={grpc[3]}", f"-s3.config={config}", "-s3.iam=false"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),  # or every server takes the same two ports
        *("-master.volumeSizeLimitMB=64", "-volume.max=50", "-master.telemetry=false"),
    ]
    return _started(folder, command, port)


def start_rclone(folder: Path) -> Started:
    port = free_port()
    (folder / BUCKET).mkdir()
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    command = [str(SCRIPTS / "rclone"), "serve", "s3", "--auth-key", keys, "--addr", f"127.0.0.1:{port}"]
    # It gives files that others put there, too. With 0 s it would forget its folders without a pause to the end.
    command += ["--dir-cache-time", "1ms", str(folder)]
    return _started(folder, command, port)


def _started(folder: Path, command: list[str], port: int) -> Started:
    log = folder / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=clean_environment(HOME=str(folder))
        )
    wait_until(lambda: _make_bucket(port), process, log)
    return {"pid": process.pid, "port": port}


def _make_bucket(port: int) -> bool:
    """Create the bucket and put an object into it; False, or an `OSError`, if the server is not ready."""
    socket.create_connection(("127.0.0.1", port), 1).close()  # a client takes longer to make than a refusal to come
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        patience = Config(retries={"max_attempts": 1}, connect_timeout=1, read_timeout=5)
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", config=patience, **keys)
        try:
            client.create_bucket(Bucket=BUCKET)
        except ClientError as error:
            if "Bucket" not in error.response["Error"]["Code"]:
                return False
        except BotoCoreError:
            return False
        try:
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"1")
        except (BotoCoreError, ClientError):
            return False
    return True


class ObjectServer:
    """A running server, and locations in it."""

    def __init__(self, started: Started) -> None:
        self.endpoint = f"http://127.0.0.1:{started['port']}"
        self.port = started["port"]
        self.storage = {"endpoint": self.endpoint, "region": "us-east-1", "allow_http": True}

    def url(self) -> str:
        """A location that no other test has."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def location(self, url: str | None = None) -> StoreLocation:
        return parse_location(url or self.url(), self.storage)

    def via(self, endpoint: str) -> dict[str, str | bool]:
        """The storage options by which a proxy before this server is reached."""
        return {**self.storage, "endpoint": endpoint}
