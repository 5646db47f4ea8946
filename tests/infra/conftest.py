"""An S3 server that honours conditional puts, as AWS does."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.request import urlopen

import boto3
import pytest
from botocore.config import Config

from infra.store import ObjectStore
from tests.stack import free_ports

KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
START_SECONDS = 240


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The address of moto's server."""
    port = free_ports(1)[0]
    # In its own process: importing moto here would slow down every other boto3 client.
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError), urlopen(f"{address}/moto-api/data.json", timeout=START_SECONDS):
                break
            time.sleep(0.2)
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def strict_store(moto: str) -> ObjectStore:
    """A store whose server returns 412 to a conditional put of a taken key."""
    retries = Config(max_pool_connections=20, retries={"mode": "standard", "max_attempts": 12})
    store = ObjectStore(boto3.client("s3", endpoint_url=moto, config=retries, **KEYS), "strict")
    store.ensure_bucket()
    return store
