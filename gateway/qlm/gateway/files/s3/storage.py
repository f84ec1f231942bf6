"""Files and batches in one bucket, together."""

import contextlib
import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from qlm.domain.errors import StorageUnavailableError
from qlm.domain.ports.clock import Clock
from qlm.gateway.files.limits import FileLimits
from qlm.gateway.files.records import CLAIM_TTL_S, ID_BYTES, RandomHex
from qlm.gateway.files.s3.batches import S3Batches
from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.errors import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, StorageRefusedError
from qlm.gateway.files.s3.files import S3Files
from qlm.gateway.files.s3.known import KnownJson
from qlm.gateway.files.s3.settings import S3Settings
from qlm.gateway.files.s3.threads import DaemonThreads
from qlm.gateway.files.storage import Pace, Storage

PACE: Final = Pace(scan_s=3.0, look_s=2.0, note_s=5.0, sweep_s=900.0)
"""Each look costs calls, for which most storages are paid."""

TRIES: Final = 4
"""Tries of a call, with growing pauses between them."""

_THREADS: Final = 16


def storage_of_bucket(
    bucket: Bucket,
    clock: Clock,
    limits: FileLimits | None = None,
    random_hex: RandomHex = secrets.token_hex,
    claim_ttl_s: float = CLAIM_TTL_S,
    pace: Pace = PACE,
) -> Storage:
    """Return the files and batches in a bucket, which several gateways may share."""
    known = KnownJson(bucket)
    files = S3Files(bucket, known, clock, random_hex)
    batches = S3Batches(bucket, files, known, clock, random_hex, claim_ttl_s)
    threads = DaemonThreads(_THREADS, "qlm-s3")
    return Storage(files, batches, limits or FileLimits(), pace, threads)


def bucket_of(settings: S3Settings, environment: Mapping[str, str] = os.environ) -> Bucket:
    """Return the bucket of the configuration; nothing is called yet.

    Raises:
        StorageRefusedError: Settings or environment cannot be used.
    """
    try:
        client = _client(settings, environment)
    except BotoCoreError as error:
        raise StorageRefusedError(f"the S3 bucket {settings.bucket}: {error}") from error
    return Bucket(client, settings.bucket, settings.prefix)


def check_bucket(bucket: Bucket, random_hex: RandomHex = secrets.token_hex) -> None:
    """Write, list and delete an object, and see that conditions of writes hold: claims are made of them.

    Raises:
        StorageRefusedError: The settings are wrong, or the storage ignores conditions.
        StorageUnavailableError: The storage is away.
    """
    key = f"check/{random_hex(ID_BYTES)}"
    first = bucket.put_json_if(key, {"probe": 1})
    try:
        again = bucket.put_json_if(key, {"probe": 2})
        other = bucket.put_json_if(key, {"probe": 3}, '"00000000000000000000000000000000"')
        listed = bucket.keys(key)
    except StorageUnavailableError:  # a gateway that starts again and again leaves no objects
        with contextlib.suppress(StorageUnavailableError):
            bucket.delete(key)
        raise
    bucket.delete(key)
    if first is None or again is not None or other is not None or listed != [key]:
        raise StorageRefusedError(
            f"{bucket.where}: it ignores conditions of writes (If-None-Match, If-Match); batches need them"
        )


def _client(settings: S3Settings, environment: Mapping[str, str]) -> BaseClient:
    """Return a client, with credentials that engines do not inherit."""
    session = Session()
    # AWS_ACCESS_KEY_ID and the like would reach the engines that this process starts.
    session.get_component("credential_provider").remove("env")
    names = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    names["aws_session_token"] = SESSION_TOKEN
    given: dict[str, Any] = {
        name: environment[variable] for name, variable in names.items() if environment.get(variable)
    }
    config = Config(
        connect_timeout=min(settings.timeout_s, 5.0),
        read_timeout=settings.timeout_s,
        retries={"mode": "standard", "total_max_attempts": TRIES},
        max_pool_connections=2 * _THREADS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if settings.endpoint_url else "auto"},
    )
    region = settings.region or environment.get("AWS_REGION")
    if region is None and settings.endpoint_url is not None:
        region = "us-east-1"  # of servers that have no regions
    return session.create_client(
        "s3", region_name=region, endpoint_url=settings.endpoint_url, config=config, **given
    )
