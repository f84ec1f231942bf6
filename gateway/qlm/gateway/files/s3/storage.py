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
from qlm.gateway.files.records import CLAIM_TTL_S, ID_BYTES
from qlm.gateway.files.s3.batches import S3Batches
from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.errors import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, StorageRefusedError
from qlm.gateway.files.s3.files import S3Files
from qlm.gateway.files.s3.known import KnownJson
from qlm.gateway.files.s3.settings import S3Settings
from qlm.gateway.files.s3.tries import SMALL_SHARE
from qlm.gateway.files.storage import Pace, Storage
from qlm.gateway.files.threads import DaemonThreads

PACE: Final = Pace(scan_s=3.0, look_s=2.0, note_s=5.0, sweep_s=900.0, rest_s=10.0)
"""Each look costs calls, for which most storages are paid."""

_THREADS: Final = 16


def storage_of_bucket(
    bucket: Bucket,
    clock: Clock,
    limits: FileLimits | None = None,
    claim_ttl_s: float = CLAIM_TTL_S,
    pace: Pace = PACE,
) -> Storage:
    """Return the files and batches in a bucket, which several gateways may share."""
    known = KnownJson(bucket)
    files = S3Files(bucket, known, clock, secrets.token_hex)
    batches = S3Batches(bucket, files, known, clock, secrets.token_hex, claim_ttl_s)
    threads = DaemonThreads(_THREADS, "qlm-s3")
    return Storage(files, batches, limits or FileLimits(), threads, pace)


def bucket_of(settings: S3Settings, environment: Mapping[str, str] = os.environ) -> Bucket:
    """Return the bucket of the configuration; nothing is called yet.

    Raises:
        StorageRefusedError: Settings or environment cannot be used.
    """
    try:
        session, timeout_s = _session(), settings.timeout_s
        client = _client(session, settings, environment, SMALL_SHARE * timeout_s)
        large_client = _client(session, settings, environment, timeout_s)
    except BotoCoreError as error:
        raise StorageRefusedError(f"the S3 bucket {settings.bucket}: {error}") from error
    return Bucket(client, large_client, settings.bucket, settings.prefix, timeout_s)


def check_bucket(bucket: Bucket) -> None:
    """Write, list and delete an object, and see that conditions of writes hold: claims are made of them.

    Raises:
        StorageRefusedError: The settings are wrong, or the storage ignores conditions.
        StorageUnavailableError: The storage is away.
    """
    key = f"check/{secrets.token_hex(ID_BYTES)}"
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


def _session() -> Session:
    """Return a session that takes no credentials that engines inherit."""
    session = Session()
    # AWS_ACCESS_KEY_ID and the like would reach the engines that this process starts.
    session.get_component("credential_provider").remove("env")
    return session


def _client(
    session: Session, settings: S3Settings, environment: Mapping[str, str], timeout_s: float
) -> BaseClient:
    """Return a client with the credentials of the environment, which waits so long for an answer."""
    names = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    names["aws_session_token"] = SESSION_TOKEN
    given: dict[str, Any] = {
        name: environment[variable] for name, variable in names.items() if environment.get(variable)
    }
    config = Config(
        connect_timeout=SMALL_SHARE * settings.timeout_s,
        read_timeout=timeout_s,
        retries={"mode": "standard", "total_max_attempts": 1},  # `Calls` tries again
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
