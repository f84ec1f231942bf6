"""Claims of batches by gateways that share files: one at a time, and none of a dead one."""

import os
import subprocess
import sys
from pathlib import Path

from qlm.gateway.files.batches import BatchState
from qlm.gateway.files.storage import storage_in
from support.gateway import SystemClock
from support.stored_batches import add_batch

CLAIMS = """
import secrets, signal, sys
from pathlib import Path
from qlm.cli.runtime.clock import SystemClock
from qlm.gateway.files.batches import Batches
claim = Batches(Path(sys.argv[1]), SystemClock(), secrets.token_hex).claim(Path(sys.argv[2]))
print(claim.number, flush=True)
signal.pause()
"""


def test_a_killed_gateway_has_no_claim(tmp_path: Path) -> None:
    storage = storage_in(tmp_path / "files", SystemClock())
    _, folder = add_batch(storage, b"x\n", endpoint="/v1/completions")
    command = [sys.executable, "-c", CLAIMS, str(tmp_path / "files"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
        try:
            assert gateway.stdout is not None and gateway.stdout.readline() == b"1\n"
            assert storage.batches.claim(folder) is None
        finally:
            gateway.kill()
    second = storage.batches.claim(folder)
    assert second is not None and second.number == 2
    assert storage.batches.claim(folder) is None
    second.release()


def test_a_claim_of_another_machine_is_valid_until_it_is_stale(tmp_path: Path) -> None:
    storage = storage_in(tmp_path / "files", SystemClock())
    _, folder = add_batch(storage, b"x\n", endpoint="/v1/completions")
    (folder / "claim-000001").write_bytes(b"another boot")
    assert storage.batches.claim(folder) is None
    os.utime(folder / "claim-000001", (0, 0))
    claim = storage.batches.claim(folder)
    assert claim is not None and claim.number == 2
    claim.release()


def test_a_claim_is_one_gateways_until_it_is_stale(tmp_path: Path) -> None:
    storage = storage_in(tmp_path / "files", SystemClock())
    spec, folder = add_batch(storage, b"x\n", endpoint="/v1/completions")
    first = storage.batches.claim(folder)
    assert first is not None and first.renew()
    assert storage.batches.claim(folder) is None
    os.utime(first.path("claim"), (0, 0))  # as if it had not been renewed for long
    second = storage.batches.claim(folder)
    assert second is not None and not first.renew() and second.renew()
    first.lock.release()
    second.lock.release()
    storage.batches.write_state(second, BatchState(status="in_progress", total=3))
    storage.batches.write_state(first, BatchState(status="in_progress", total=9))
    assert storage.batches.read(folder) is not None
    found = storage.batches.get("a", spec.id)
    assert found is not None and found.state.total == 3
    # Who ends it first ends it, even with an old claim.
    assert storage.batches.end(first, BatchState(status="completed", output_file_id="file-1"))
    assert not storage.batches.end(second, BatchState(status="completed", output_file_id="file-2"))
    found = storage.batches.get("a", spec.id)
    assert found is not None and found.ended and found.state.output_file_id == "file-1"
    storage.batches.close(folder)
    assert storage.batches.open_folders() == {}
    assert storage.batches.claim(folder) is None
    assert storage.batches.get("b", spec.id) is None
