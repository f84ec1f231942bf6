"""The place for files and batches that the configuration names."""

import asyncio
import importlib.util
import logging
from pathlib import Path
from typing import Final

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config
from qlm.domain.errors import StorageUnavailableError, extra_hint
from qlm.domain.ports.clock import Clock
from qlm.gateway.files.disk.storage import storage_in, write_in
from qlm.gateway.files.s3.settings import S3Settings
from qlm.gateway.files.storage import Storage
from qlm.gateway.files.threads import DaemonThreads

_log = logging.getLogger(__name__)

FOLDER_S: Final = 5.0
"""A folder that takes no file within this time hangs, as NFS does without its server."""


def storage(config: Config, clock: Clock) -> Storage | None:
    """Return the files and batches of a gateway; None if it keeps none.

    Raises:
        ConfigError: The bucket cannot be used as it is configured.
    """
    if config.files.s3 is not None:
        return _in_bucket(config, config.files.s3, clock)
    root = config.files.dir
    if root is None and config.embedded:
        root = config.data_dir / "files"
    return None if root is None else storage_in(root, clock, config.files)


async def check_storage(config: Config) -> None:
    """Try the bucket or the folder that is configured; one that is away is reported, since it may come back.

    Raises:
        ConfigError: The bucket cannot be used as it is configured.
    """
    try:
        if config.files.s3 is not None:
            await asyncio.to_thread(try_bucket, config.files.s3)
        elif config.files.dir is not None:
            await _try_folder(config.files.dir)
    except StorageUnavailableError as error:
        _log.warning("files and batches wait: %s", error)


async def _try_folder(folder: Path) -> None:
    """Write into a folder.

    Raises:
        StorageUnavailableError: It cannot be written, or hangs.
    """
    threads = DaemonThreads(1, "qlm-files")
    try:
        async with asyncio.timeout(FOLDER_S):
            await asyncio.get_running_loop().run_in_executor(threads, write_in, folder)
    except OSError as error:
        why = error.strerror or f"no answer within {FOLDER_S:g} s"
        raise StorageUnavailableError(
            f"files.dir is {str(folder)!r}; expected a folder to write to ({why})"
        ) from error


def try_bucket(settings: S3Settings) -> None:
    """Write, list and delete in a bucket.

    Raises:
        ConfigError: It cannot be used as it is configured.
        StorageUnavailableError: It is away.
    """
    _check_installed()
    from qlm.gateway.files.s3.errors import StorageRefusedError
    from qlm.gateway.files.s3.storage import bucket_of, check_bucket

    try:
        check_bucket(bucket_of(settings))
    except StorageRefusedError as error:
        raise ConfigError(f"files.s3 cannot be used: {error}") from error


def _in_bucket(config: Config, settings: S3Settings, clock: Clock) -> Storage:
    _check_installed()
    from qlm.gateway.files.s3.errors import StorageRefusedError
    from qlm.gateway.files.s3.storage import bucket_of, storage_of_bucket

    try:
        return storage_of_bucket(bucket_of(settings), clock, config.files)
    except StorageRefusedError as error:
        raise ConfigError(f"files.s3 cannot be used: {error}") from error


def _check_installed() -> None:
    if importlib.util.find_spec("botocore") is None:
        raise ConfigError(f"files.s3 needs botocore: {extra_hint('s3')}")
