"""The claim of a gateway to a batch on the disk, and the files that it alone writes."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final, get_args

from qlm.domain.ports.clock import Clock
from qlm.gateway.files.disk.files import DiskFiles
from qlm.gateway.files.disk.json_files import write_all, write_json, write_json_once
from qlm.gateway.files.disk.life_lock import LifeLock
from qlm.gateway.files.opened import Opened
from qlm.gateway.files.port import Part
from qlm.gateway.files.records import BatchState, RandomHex

CANCEL: Final = "cancel"
PAUSE: Final = "pause"

_PARTS: Final[tuple[Part, ...]] = get_args(Part)


@dataclass(slots=True, kw_only=True)
class DiskClaim:
    """The right to run a batch, as long as no later claim exists.

    Attributes:
        folder: Folder of the batch.
        tenant: Its tenant.
        number: Number of the claim.
        lock: Shows that its gateway lives.
        state: Progress, as it was last written.
        files: Where its results go.
        clock: The clock.
        random_hex: Names what is not whole yet.
        parts: The results that it writes, open.
        opened: Closes them, also those that a thread has yet to open.
        turn: Held during a write.
    """

    folder: Path
    tenant: str
    number: int
    lock: LifeLock
    state: BatchState
    files: DiskFiles
    clock: Clock
    random_hex: RandomHex
    parts: dict[Part, FileIO] = field(default_factory=dict)
    opened: dict[Part, Opened] = field(default_factory=lambda: {part: Opened() for part in _PARTS})
    turn: Lock = field(default_factory=Lock)

    def path(self, what: str) -> Path:
        """Return the path of a file of this claim."""
        return self.folder / f"{what}-{self.number:06d}"

    def renew(self) -> bool:
        """Renew it; False if a later claim or an end exists."""
        if (self.folder / "end.json").exists() or last_claim(self.folder) != self.number:
            return False
        os.utime(self.path("claim"))
        return True

    def release(self) -> None:
        """Let another gateway claim the batch at once."""
        self.lock.release()
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path("claim"), (0, 0))

    def cancelled(self) -> bool:
        """Return whether the batch is to be cancelled."""
        return (self.folder / CANCEL).exists()

    def paused(self) -> bool:
        """Return whether no further lines of the batch are to begin."""
        return (self.folder / PAUSE).exists()

    def input(self) -> BinaryIO:
        """Open the input of the batch."""
        return (self.folder / "input").open("rb")

    # --- results

    def begin(self) -> None:
        """Begin own results, which are empty."""
        for part, opened in self.opened.items():
            self.parts[part] = opened.keep(partial(_create, self.path(part)))

    def earlier(self, part: Part) -> Iterator[bytes]:
        """Yield the lines of earlier claims; of each claim the last one may be cut off."""
        for path in self._earlier(part):
            with path.open("rb") as file:
                yield from file

    def forget_earlier(self, part: Part) -> None:
        """Make own lines durable, then delete those of earlier claims."""
        os.fsync(self.parts[part].fileno())
        for path in self._earlier(part):
            path.unlink(missing_ok=True)

    def write(self, part: Part, line: bytes) -> None:
        """Add a line to own results, whole or not at all."""
        file = self.parts[part]
        with self.turn:  # a write that its caller no longer waits for may go on
            end = file.tell()
            try:
                write_all(file, line)
            except BaseException:  # the disk is full, say
                with contextlib.suppress(OSError, ValueError):  # `close` may have come
                    file.truncate(end)
                    file.seek(end)
                raise

    def publish(self, part: Part, name: str, lifetime_s: int) -> str | None:
        """Make a file of own results; return its id, or None if there are none."""
        file = self.parts[part]
        os.utime(file.fileno())  # a sweep deletes uploads by their age, and this one may be days old
        os.fsync(file.fileno())
        if not file.tell():
            return None
        content = self.files.upload_path()
        content.hardlink_to(self.path(part))
        return self.files.add(self.tenant, content, name, "batch_output", lifetime_s).id

    def note(self, state: BatchState) -> None:
        """Note progress under this claim."""
        self.state = state
        write_json(self.path("state").with_suffix(".json"), asdict(state), self.random_hex)

    def end(self, state: BatchState) -> bool:
        """End the batch, which is then to be closed; False if it has ended: this end is none."""
        state = replace(state, ended_s=self.clock.now_ns() // 10**9)
        first = write_json_once(self.folder / "end.json", asdict(state), self.random_hex)
        if first:
            self.state = state
        return first

    def close(self) -> None:
        """Write no more; does not block."""
        for opened in self.opened.values():
            opened.give_up()

    def _earlier(self, part: Part) -> list[Path]:
        """Return results of earlier claims; each may have been cut off while it took over those before it."""
        own = self.path(part).name
        return sorted(path for path in self.folder.glob(f"{part}-*") if path.name < own)


def last_claim(folder: Path) -> int:
    """Return the number of the last claim of a batch; 0 without one."""
    return max((int(path.name.partition("-")[2]) for path in folder.glob("claim-*")), default=0)


def _create(path: Path) -> FileIO:
    return path.open("xb", buffering=0)
