"""Batches added to a storage without a gateway."""

from dataclasses import replace
from pathlib import Path

from qlm.domain.ports.clock import Clock
from qlm.gateway.files.batches import BatchSpec
from qlm.gateway.files.storage import Storage
from support.gateway import SystemClock


def add_batch(
    storage: Storage,
    content: bytes,
    *,
    endpoint: str,
    tenant: str = "a",
    id: str | None = None,
    clock: Clock | None = None,
) -> tuple[BatchSpec, Path]:
    """Add a batch with a window of an hour; return what it asks for, and its folder."""
    path = storage.files.upload_path()
    path.write_bytes(content)
    file = storage.files.add(tenant, path, "in.jsonl", "batch", 3600)
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
    storage.batches.add(spec, storage.files.content(tenant, file.id))
    return spec, storage.batches.open_folders()[spec.id]
