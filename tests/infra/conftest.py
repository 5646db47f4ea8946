"""A store on an S3 server that honours conditional puts, as AWS does."""

import boto3
import pytest
from botocore.config import Config

from infra.storage.store import ObjectStore

KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}


@pytest.fixture(scope="session")
def strict_store(moto: str) -> ObjectStore:
    """A store whose server returns 412 to a conditional put of a taken key."""
    retries = Config(max_pool_connections=20, retries={"mode": "standard", "max_attempts": 12})
    store = ObjectStore(boto3.client("s3", endpoint_url=moto, config=retries, **KEYS), "strict")
    store.ensure_bucket()
    return store
