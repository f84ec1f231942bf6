"""A server of S3-compatible storage for tests: that of moto, which others wrote.

Its limits: data is in memory, any credentials are taken unless a test resets that, uploads in parts have one
time of years ago, and a condition of a write is checked before the write, not together with it. So races of
claims are played one after the other.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.errors import ACCESS_KEY, SECRET_KEY
from qlm.gateway.files.s3.settings import S3Settings
from qlm.gateway.files.s3.storage import bucket_of
from support.ports import free_port
from support.process import ServerProcess

CREDENTIALS = {ACCESS_KEY: "access", SECRET_KEY: "hidden-secret"}
START_S = 60.0


def missing() -> str | None:
    """Return what is missing for the server; None if nothing is."""
    found = importlib.util.find_spec("moto") and importlib.util.find_spec("botocore")
    return None if found else "moto is not installed: pip install -e '.[dev]'"


@contextlib.contextmanager
def running_s3() -> Iterator[str]:
    """Run a server while inside; yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with tempfile.TemporaryDirectory(prefix="qlm-s3-") as folder:
        server = ServerProcess("s3", command, env=os.environ, folder=Path(folder))
        try:
            server.start()
            server.wait_ready(lambda: _answers(url), timeout_s=START_S)
            yield url
        finally:
            server.kill()


def new_bucket(url: str, *, via: str | None = None, prefix: str = "qlm/", timeout_s: float = 10.0) -> Bucket:
    """Make a bucket on a server; return it as a gateway that reaches it at `via` uses it."""
    name = f"b-{uuid.uuid4().hex}"
    httpx.put(f"{url}/{name}", timeout=START_S).raise_for_status()  # the first call loads what serves S3
    settings = S3Settings(bucket=name, prefix=prefix, endpoint_url=via or url, timeout_s=timeout_s)
    return bucket_of(settings, CREDENTIALS)


def with_uploads_of_now(bucket: Bucket) -> Bucket:
    """Let uploads in parts be of the time at which they are listed: a gateway that starts ends old ones."""

    def begun_now(parsed: dict[str, Any], **_: Any) -> None:
        for upload in parsed.get("Uploads", ()):
            upload["Initiated"] = datetime.now(UTC)

    bucket._client.meta.events.register("after-call.s3.ListMultipartUploads", begun_now)
    return bucket


def bucket_again(url: str, bucket: Bucket) -> Bucket:
    """Return a bucket as another gateway uses it."""
    return bucket_of(S3Settings(bucket=bucket.name, prefix="qlm/", endpoint_url=url), CREDENTIALS)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/moto-api/data.json", timeout=START_S).is_success
    except httpx.TransportError:
        return False
