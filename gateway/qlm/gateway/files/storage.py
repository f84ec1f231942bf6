"""Files and batches of one gateway, together."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from qlm.domain.ports.clock import Clock
from qlm.gateway.files.batches import Batches
from qlm.gateway.files.disk import RandomHex
from qlm.gateway.files.files import Files
from qlm.gateway.files.limits import FileLimits


@dataclass(frozen=True, slots=True)
class Storage:
    """Files and batches in one folder.

    Attributes:
        files: The files.
        batches: The batches.
        limits: Limits of both.
    """

    files: Files
    batches: Batches
    limits: FileLimits


def storage_in(
    root: Path, clock: Clock, limits: FileLimits | None = None, random_hex: RandomHex = secrets.token_hex
) -> Storage:
    """Return the files and batches in a folder, which several gateways may share."""
    return Storage(Files(root, clock, random_hex), Batches(root, clock, random_hex), limits or FileLimits())
