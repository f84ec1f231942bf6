"""Batches added to a storage without a gateway."""

from dataclasses import replace
from pathlib import Path

from qlm.domain.ports.clock import Clock
from qlm.gateway.files.disk.claim import DiskClaim
from qlm.gateway.files.disk.files import DiskFiles
from qlm.gateway.files.records import BatchSpec, StoredFile
from qlm.gateway.files.storage import Storage
from support.gateway import SystemClock


def add_file(
    storage: Storage, content: bytes, *, tenant: str = "a", name: str = "in.jsonl", lifetime_s: int = 3600
) -> StoredFile:
    """Add a file."""
    incoming = storage.files.incoming(tenant)
    try:
        incoming.write(content)
        return incoming.keep(name, "batch", lifetime_s)
    finally:
        incoming.discard()


def add_batch(
    storage: Storage,
    content: bytes,
    *,
    endpoint: str,
    tenant: str = "a",
    id: str | None = None,
    clock: Clock | None = None,
) -> tuple[BatchSpec, str]:
    """Add a batch with a window of an hour; return what it asks for, and its place."""
    file = add_file(storage, content, tenant=tenant)
    now_s = (clock or SystemClock()).now_ns() // 10**9
    spec = BatchSpec(
        id=storage.batches.new_id(),
        tenant=tenant,
        endpoint=endpoint,
        window="1h",
        input_file_id=file.id,
        created_s=now_s,
        expires_s=now_s + 3600,
        metadata={},
        output_kept_s=3600,
    )
    spec = spec if id is None else replace(spec, id=id)
    storage.batches.add(spec)
    return spec, storage.batches.open_places()[spec.id]


def folder_of(storage: Storage, place: str) -> Path:
    """Return the folder of a batch on the disk."""
    assert isinstance(storage.files, DiskFiles)
    return storage.files.root / place


def disk_claim(storage: Storage, place: str) -> DiskClaim | None:
    """Claim a batch on the disk."""
    claim = storage.batches.claim(place)
    assert claim is None or isinstance(claim, DiskClaim)
    return claim
