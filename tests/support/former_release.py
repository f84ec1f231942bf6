"""The code of efb3399, the release before extensions: its readers and stores, in their own process."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FORMER: Final = "efb3399"
ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDERS: Final = ("domain", "broker", "store")

_BEGINNING: Final = """
import asyncio, json, sys, time
from pathlib import Path
sys.path[:0] = {folders!r}
from qlm.broker.codec import decode_request, encode_request
from qlm.broker.sqlite import SqliteQueues
from qlm.broker.sqlite_file import SqliteFile
from qlm.broker.sqlite_journal import SqliteJournal
from qlm.domain import plain
from qlm.domain.ids import InstanceId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.output import LogEntry
from qlm.domain.outcome import Outcome
from qlm.store.embedded import EmbeddedStore
from qlm.store.redis import RedisStore

assert not hasattr(plain, "metadata_to_plain"), "this is not the former release"

class Clock:
    def now_ns(self):
        return time.time_ns()

A = Holder(InstanceId("former"), SessionId("s"))
given = json.loads(sys.stdin.read())

async def lease(store, request):
    return (await store.lease(request.card(), A, None)).lease.epoch

async def append(store, request, epoch, offset, token_ids, end=None):
    entry = LogEntry(id=request.id, epoch=epoch, offset=offset, token_ids=tuple(token_ids), outcome=end)
    return (await store.append([entry]))[0].value

async def output(store, request):
    read = await store.read_output(request.id, 0)
    return list(read.token_ids)
"""


def missing() -> str | None:
    """Return why this code is not to be had; None if it is."""
    command = ("git", "rev-parse", "--verify", "--quiet", f"{FORMER}^{{commit}}")
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        found = False
    return None if found else f"this clone has no {FORMER}: it is shallow, `git fetch --unshallow` it"


def unpacked(folder: Path) -> Path:
    """Unpack the packages of that release into a folder."""
    archive = subprocess.run(
        ("git", "archive", FORMER, *_FOLDERS), cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(("tar", "-x", "-C", str(folder)), input=archive, check=True)
    return folder


def run(folder: Path, program: str, given: Any) -> Any:
    """Run a program on that code; it finds `given`, and prints what is returned, as JSON."""
    folders: Sequence[str] = [str(folder / each) for each in _FOLDERS]
    text = _BEGINNING.format(folders=folders) + program
    done = subprocess.run(
        (sys.executable, "-c", text), input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
