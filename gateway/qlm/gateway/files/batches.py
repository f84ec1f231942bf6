"""Batches on the disk, and the claim of the gateway that runs one.

`<root>/<tenant>/batches/<id>/` has
* `batch.json`: what was asked for; never changed,
* `input`: the input file (a link: its deletion does not stop the batch),
* `claim-N`: the N-th claim, made by one gateway, locked by it, and renewed (its time of change),
* `state-N.json`, `output-N`, `errors-N`: progress under that claim, written by its gateway alone,
* `cancel`: its client asked to cancel it, at its time of change,
* `pause`: it is paused, since its time of change,
* `end.json`: how it ended; made once, by the first who can, and final.

`<root>/open/<id>` names the folder of a batch that has not ended.

So the proof that a batch has one result needs no clock: names are created exclusively, a claim's files have
one writer, and only the one end names output. A gateway that was thought dead and goes on changes nothing.
Claims only save double work: requests of lines have ids by batch and line, and are generated once anyway.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from qlm.domain.ports.clock import Clock
from qlm.gateway.files.disk import (
    ID_BYTES,
    RandomHex,
    changed_s,
    is_id,
    read_json,
    sync_folder,
    tenant_folder,
    write_json,
    write_json_once,
)
from qlm.gateway.files.life_lock import LifeLock, has_died

BATCH_PREFIX: Final = "batch_"

CLAIM_TTL_S: Final = 15.0
"""A claim that was not renewed for this time is another gateway's to replace.

It is for gateways of other machines, and for one that hangs. On one machine a lock tells at once who died."""

_OPEN: Final = "open"
_CANCEL: Final = "cancel"
_PAUSE: Final = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """What a client asked for.

    Attributes:
        id: Id of the batch.
        tenant: Its tenant.
        endpoint: Route of all its lines.
        window: Its completion window as given.
        input_file_id: File with its lines.
        created_s: Its creation, seconds since the epoch.
        expires_s: End of its window, seconds since the epoch.
        metadata: Its client's notes.
        output_kept_s: Lifetime of its output, seconds.
    """

    id: str
    tenant: str
    endpoint: str
    window: str
    input_file_id: str
    created_s: int
    expires_s: int
    metadata: Mapping[str, str]
    output_kept_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """Progress of a batch.

    Attributes:
        status: `validating`, `in_progress`, `finalizing`, or how it ended.
        total: Its lines; 0 until they are validated.
        completed: Lines in the output.
        failed: Lines among the errors.
        started_s: The time at which its lines were found valid, seconds since the epoch.
        finalizing_s: The time at which all lines had an answer.
        ended_s: Its end.
        output_file_id: File with the answers; None if there is none.
        error_file_id: File with the errors; None if there is none.
        errors: What is wrong with its input: code, message, line.
    """

    status: str = "validating"
    total: int = 0
    completed: int = 0
    failed: int = 0
    started_s: int | None = None
    finalizing_s: int | None = None
    ended_s: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch as it is now.

    Attributes:
        spec: What was asked for.
        state: Its progress.
        cancel_s: The time at which it was asked to be cancelled, seconds since the epoch; None if it was not.
        pause_s: The time since which it is paused; None if it is not.
        ended: Its state is final.
    """

    spec: BatchSpec
    state: BatchState
    cancel_s: int | None
    ended: bool
    pause_s: int | None = None

    @property
    def status(self) -> str:
        """Its status, as clients see it."""
        return "cancelling" if self.cancel_s is not None and not self.ended else self.state.status

    def rests(self, now_s: int) -> bool:
        """Return whether its pause keeps it from going on: it is not cancelled, and its window not over."""
        return self.pause_s is not None and self.cancel_s is None and now_s < self.spec.expires_s


@dataclass(slots=True)
class Claim:
    """The right to run a batch, as long as no later claim exists.

    Attributes:
        folder: Folder of the batch.
        number: Number of the claim.
        lock: Shows that its gateway lives.
        state: Progress, as it was last written.
    """

    folder: Path
    number: int
    lock: LifeLock
    state: BatchState = field(default_factory=BatchState)

    def path(self, what: str) -> Path:
        """Return the path of a file of this claim."""
        return self.folder / f"{what}-{self.number:06d}"

    def renew(self) -> bool:
        """Renew it; False if a later claim or an end exists."""
        if (self.folder / "end.json").exists() or _last_claim(self.folder) != self.number:
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
        return (self.folder / _CANCEL).exists()

    def paused(self) -> bool:
        """Return whether no further lines of the batch are to begin."""
        return (self.folder / _PAUSE).exists()


class Batches:
    """The batches of all tenants below one folder, which several gateways may share. Its calls block."""

    def __init__(self, root: Path, clock: Clock, random_hex: RandomHex) -> None:
        """Use the folder of the files."""
        self._root = root
        self._clock = clock
        self._random_hex = random_hex

    def new_id(self) -> str:
        """Return an unused id that cannot be guessed."""
        return BATCH_PREFIX + self._random_hex(ID_BYTES)

    def add(self, spec: BatchSpec, content: Path) -> Batch:
        """Accept a batch on the content of its input file."""
        folder = self._folder(spec.tenant, spec.id)
        folder.mkdir(parents=True)
        (folder / "input").hardlink_to(content)
        opened = self._root / _OPEN
        opened.mkdir(exist_ok=True)
        write_json(opened / spec.id, {"folder": str(folder.relative_to(self._root))}, self._random_hex)
        write_json(folder / "batch.json", asdict(spec), self._random_hex)
        return Batch(spec=spec, state=BatchState(), cancel_s=None, ended=False)

    def get(self, tenant: str, id: str) -> Batch | None:
        """Return a batch; None if the tenant has none with this id."""
        return self.read(self._folder(tenant, id)) if is_id(id, BATCH_PREFIX) else None

    def all_of(self, tenant: str) -> list[Batch]:
        """Return the batches of a tenant, newest first."""
        return self._newest_first((tenant_folder(self._root, tenant) / "batches").glob(f"{BATCH_PREFIX}*"))

    def count_open(self, tenant: str) -> int:
        """Count the batches of a tenant that have not ended."""
        folders = (tenant_folder(self._root, tenant) / "batches").glob(f"{BATCH_PREFIX}*")
        return sum(not (folder / "end.json").exists() for folder in folders)

    def read(self, folder: Path) -> Batch | None:
        """Return the batch in a folder; None if it is not there, or not yet."""
        if (plain := read_json(folder / "batch.json")) is None:
            return None
        spec = BatchSpec(**{name: plain[name] for name in BatchSpec.__slots__})
        end = read_json(folder / "end.json")
        state = _state(end) if end is not None else _latest_state(folder)
        cancel_s, pause_s = changed_s(folder / _CANCEL), changed_s(folder / _PAUSE)
        ended = end is not None
        return Batch(
            spec=spec, state=state, cancel_s=cancel_s, ended=ended, pause_s=None if ended else pause_s
        )

    def cancel(self, tenant: str, id: str) -> None:
        """Ask that a batch be cancelled."""
        (self._folder(tenant, id) / _CANCEL).touch()

    def pause(self, tenant: str, id: str) -> None:
        """Ask that no further lines of a batch begin."""
        path = self._folder(tenant, id) / _PAUSE
        path.open("ab").close()  # unlike `touch`, this keeps the time of an earlier one
        sync_folder(path.parent)

    def resume(self, tenant: str, id: str) -> None:
        """Let the lines of a batch begin again."""
        folder = self._folder(tenant, id)
        (folder / _PAUSE).unlink(missing_ok=True)
        sync_folder(folder)

    # --- operators

    def all_batches(self) -> list[Batch]:
        """Return the batches of all tenants, newest first."""
        return self._newest_first(self._root.glob(f"*/batches/{BATCH_PREFIX}*"))

    def find(self, id: str) -> Batch | None:
        """Return the batch with an id, of any tenant; None if there is none."""
        folders = self._root.glob(f"*/batches/{id}") if is_id(id, BATCH_PREFIX) else ()
        return next(iter(self._newest_first(folders)), None)

    def _newest_first(self, folders: Iterable[Path]) -> list[Batch]:
        found = [each for each in map(self.read, folders) if each is not None]
        return sorted(found, key=lambda each: (each.spec.created_s, each.spec.id), reverse=True)

    # --- gateways that run batches

    def open_folders(self) -> dict[str, Path]:
        """Return the folders of the batches that have not ended, by id."""
        found = {}
        for path in sorted((self._root / _OPEN).glob(f"{BATCH_PREFIX}*")):
            if (plain := read_json(path)) is not None:
                found[path.name] = self._root / plain["folder"]
        return found

    def claim(self, folder: Path) -> Claim | None:
        """Claim a batch that no gateway runs; None if one does, or if it has ended."""
        if not (folder / "batch.json").exists():
            return None
        if (folder / "end.json").exists():
            return None
        number = _last_claim(folder)
        if number and not self._is_stale(_claim_path(folder, number)):
            return None
        state = _latest_state(folder)
        try:
            lock = LifeLock(_claim_path(folder, number + 1))
        except FileExistsError:
            return None
        return Claim(folder, number + 1, lock, state)

    def write_state(self, claim: Claim, state: BatchState) -> None:
        """Note progress under a claim."""
        claim.state = state
        write_json(claim.path("state").with_suffix(".json"), asdict(state), self._random_hex)

    def end(self, claim: Claim, state: BatchState) -> bool:
        """End a batch, which is then to be closed; False if another claim has ended it: this end is none."""
        state = replace(state, ended_s=self._clock.now_ns() // 10**9)
        first = write_json_once(claim.folder / "end.json", asdict(state), self._random_hex)
        if first:
            claim.state = state
        return first

    def sweep(self, kept_s: int) -> None:
        """Delete batches that ended long ago."""
        now_s = self._clock.now_ns() // 10**9
        for folder in self._root.glob(f"*/batches/{BATCH_PREFIX}*"):
            end = read_json(folder / "end.json")
            if end is not None and end["ended_s"] + kept_s <= now_s:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self, folder: Path) -> None:
        """Take an ended batch out of those to run, and delete what only its run needed."""
        (self._root / _OPEN / folder.name).unlink(missing_ok=True)
        for path in folder.iterdir():
            if path.name == "input" or path.name.startswith(("output-", "errors-", "state-")):
                path.unlink(missing_ok=True)
        sync_folder(folder)

    def _is_stale(self, claim: Path) -> bool:
        if has_died(claim):
            return True
        # The file system has one clock for all gateways: that by which it stamps a new file.
        probe = claim.with_name(f".probe.{self._random_hex(8)}")
        probe.touch()
        try:
            return probe.stat().st_mtime - claim.stat().st_mtime > CLAIM_TTL_S
        finally:
            probe.unlink()

    def _folder(self, tenant: str, id: str) -> Path:
        return tenant_folder(self._root, tenant) / "batches" / id


def _claim_path(folder: Path, number: int) -> Path:
    return folder / f"claim-{number:06d}"


def _last_claim(folder: Path) -> int:
    return max((int(path.name.partition("-")[2]) for path in folder.glob("claim-*")), default=0)


def _latest_state(folder: Path) -> BatchState:
    for path in sorted(folder.glob("state-*.json"), reverse=True):
        if (plain := read_json(path)) is not None:
            return _state(plain)
    return BatchState()


def _state(plain: dict[str, Any]) -> BatchState:
    known = {name: plain[name] for name in BatchState.__slots__}
    return BatchState(**known | {"errors": tuple(known["errors"])})
