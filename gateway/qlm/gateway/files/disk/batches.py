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

import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from qlm.domain.errors import UndecodableDataError
from qlm.domain.ports.clock import Clock
from qlm.domain.shell.disk import sync
from qlm.gateway.files.disk.claim import CANCEL, PAUSE, DiskClaim, last_claim
from qlm.gateway.files.disk.files import DiskFiles
from qlm.gateway.files.disk.json_files import changed_s, write_json
from qlm.gateway.files.disk.life_lock import LifeLock, has_died
from qlm.gateway.files.records import (
    BATCH_PREFIX,
    CLAIM_TTL_S,
    ID_BYTES,
    PAGE_MAX,
    UPLOAD_MAX_S,
    Batch,
    BatchSpec,
    BatchState,
    Page,
    RandomHex,
    is_id,
    newest_first,
    page_after,
    spec_from,
    state_from,
    tenant_name,
)

_OPEN: Final = "open"


class DiskBatches:
    """The batches of all tenants below one folder, which several gateways may share."""

    def __init__(self, files: DiskFiles, clock: Clock, random_hex: RandomHex) -> None:
        """Use the folder of the files."""
        self._files = files
        self._root = files.root
        self._json = files.json
        self._checked = False
        self._clock = clock
        self._random_hex = random_hex

    def new_id(self) -> str:
        """Return an unused id that cannot be guessed."""
        return BATCH_PREFIX + self._random_hex(ID_BYTES)

    def add(self, spec: BatchSpec) -> Batch:
        """Accept a batch on the content of its input file, whose deletion then does not stop it.

        Raises:
            FileNotFoundError: There is no such file any more.
        """
        folder = self._folder(spec.tenant, spec.id)
        folder.mkdir(parents=True)
        try:
            (folder / "input").hardlink_to(self._files.content(spec.tenant, spec.input_file_id))
            opened = self._root / _OPEN
            opened.mkdir(exist_ok=True)
            write_json(opened / spec.id, {"folder": self._place(folder)}, self._random_hex)
            write_json(folder / "batch.json", asdict(spec), self._random_hex)
        except BaseException:
            self._delete(folder)
            raise
        return Batch(spec=spec, state=BatchState(), cancel_s=None, ended=False)

    def get(self, tenant: str, id: str) -> Batch | None:
        """Return a batch; None if the tenant has none with this id.

        Raises:
            UndecodableDataError: It is damaged.
        """
        return self._read(self._folder(tenant, id)) if is_id(id, BATCH_PREFIX) else None

    def page(self, tenant: str, after: str | None = None, limit: int = PAGE_MAX) -> Page[Batch]:
        """Return batches of a tenant, newest first, and whether more follow.

        Raises:
            LookupError: The tenant has no such batch to begin behind.
        """
        found = self._newest_first(self._batches_of(tenant).glob(f"{BATCH_PREFIX}*"))
        return page_after(found, [each.spec.id for each in found], after, limit)

    def count_open(self, tenant: str) -> int:
        """Count the batches of a tenant that have not ended; a damaged one cannot run, and takes no room."""
        folders = self._batches_of(tenant).glob(f"{BATCH_PREFIX}*")
        batches = (self._read_sound(each) for each in folders if changed_s(each / "end.json") is None)
        return sum(each is not None and not each.ended for each in batches)

    def cancel(self, tenant: str, id: str) -> None:
        """Ask that a batch be cancelled."""
        (self._folder(tenant, id) / CANCEL).touch()

    def pause(self, tenant: str, id: str) -> None:
        """Ask that no further lines of a batch begin."""
        path = self._folder(tenant, id) / PAUSE
        path.open("ab").close()  # unlike `touch`, this keeps the time of an earlier one
        sync(path.parent)

    def resume(self, tenant: str, id: str) -> None:
        """Let the lines of a batch begin again."""
        folder = self._folder(tenant, id)
        (folder / PAUSE).unlink(missing_ok=True)
        sync(folder)

    # --- operators

    def newest(self, limit: int = PAGE_MAX) -> list[Batch]:
        """Return batches of all tenants, newest first."""
        return self._newest_first(self._root.glob(f"*/batches/{BATCH_PREFIX}*"))[:limit]

    def find(self, id: str) -> Batch | None:
        """Return the batch with an id, of any tenant; None if there is none.

        Raises:
            UndecodableDataError: It is damaged.
        """
        folder = self._folder_of(id) if is_id(id, BATCH_PREFIX) else None
        return None if folder is None else self._read(folder)

    def _newest_first(self, folders: Iterable[Path]) -> list[Batch]:
        return newest_first(each for each in map(self._read_sound, folders) if each is not None)

    # --- gateways that run batches

    def open_places(self) -> dict[str, str]:
        """Return the folders of the batches that have not ended, by id."""
        found = {}
        for path in sorted((self._root / _OPEN).glob(f"{BATCH_PREFIX}*")):
            place = self._json.read_sound(path, _place_from)
            folder = None if place is None else self._root / place
            if folder is None or folder.name != path.name or not folder.is_dir():
                folder = self._folder_of(path.name)
            if folder is not None:
                found[path.name] = self._place(folder)
        return found

    def read(self, place: str) -> Batch | None:
        """Return the batch in a folder; None if it is not there, or not yet, or damaged."""
        return self._read_sound(self._root / place)

    def claim(self, place: str) -> DiskClaim | None:
        """Claim a batch that no gateway runs; None if one does, or if it has ended.

        Raises:
            UndecodableDataError: It is damaged; no claim was made.
        """
        folder = self._root / place
        spec = self._json.read(folder / "batch.json", spec_from)
        if spec is None or (folder / "end.json").exists():
            return None
        number = last_claim(folder)
        if number and not self._is_stale(_claim_path(folder, number)):
            return None
        state = self._latest_state(folder)
        try:
            lock = LifeLock(_claim_path(folder, number + 1))
        except FileExistsError:
            return None
        return DiskClaim(
            folder=folder,
            tenant=spec.tenant,
            number=number + 1,
            lock=lock,
            state=state,
            files=self._files,
            clock=self._clock,
            random_hex=self._random_hex,
        )

    def close(self, place: str) -> None:
        """Take an ended batch out of those to run, and delete what only its run needed."""
        folder = self._root / place
        (self._root / _OPEN / folder.name).unlink(missing_ok=True)
        for path in folder.iterdir():
            if path.name == "input" or path.name.startswith(("output-", "errors-", "state-")):
                path.unlink(missing_ok=True)
        sync(folder)

    def sweep(self, kept_s: int) -> None:
        """Delete batches that ended long ago, and what is left of those that were never accepted."""
        now_s = self._clock.now_ns() // 10**9
        for folder in self._root.glob(f"*/batches/{BATCH_PREFIX}*"):
            if not self._checked:  # what is damaged is in the log from the start
                self._read_sound(folder)
            try:
                end = self._json.read(folder / "end.json", state_from)
            except UndecodableDataError:
                continue  # it has ended, but it is not known when
            if _is_abandoned(folder) if end is None else (end.ended_s or 0) + kept_s <= now_s:
                self._delete(folder)
        self._sweep_open()
        self._checked = True

    def _sweep_open(self) -> None:
        """Delete old entries of batches whose folder was deleted."""
        entries = list((self._root / _OPEN).glob(f"{BATCH_PREFIX}*"))
        places = self.open_places()
        for path in entries:
            if path.name not in places and _is_old(path):
                with suppress(OSError):  # a later sweep tries again
                    path.unlink(missing_ok=True)

    def _delete(self, folder: Path) -> None:
        try:
            (self._root / _OPEN / folder.name).unlink(missing_ok=True)
            (folder / "batch.json").unlink(missing_ok=True)  # first: without its end it would count as open
        except OSError:
            return  # a sweep tries again
        shutil.rmtree(folder, ignore_errors=True)

    def _read_sound(self, folder: Path) -> Batch | None:
        with suppress(UndecodableDataError):
            return self._read(folder)
        return None

    def _read(self, folder: Path) -> Batch | None:
        if (spec := self._json.read(folder / "batch.json", spec_from)) is None:
            return None
        end = self._json.read(folder / "end.json", state_from)
        state = self._latest_state(folder) if end is None else end
        cancel_s, pause_s = changed_s(folder / CANCEL), changed_s(folder / PAUSE)
        ended = end is not None
        return Batch(
            spec=spec, state=state, cancel_s=cancel_s, ended=ended, pause_s=None if ended else pause_s
        )

    def _latest_state(self, folder: Path) -> BatchState:
        for path in sorted(folder.glob("state-*.json"), reverse=True):
            if (state := self._json.read(path, state_from)) is not None:
                return state
        return BatchState()

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
        return self._batches_of(tenant) / id

    def _folder_of(self, id: str) -> Path | None:
        """Return the folder of a batch of any tenant; None if there is none."""
        return next(self._root.glob(f"*/batches/{id}"), None)

    def _batches_of(self, tenant: str) -> Path:
        return self._root / tenant_name(tenant) / "batches"

    def _place(self, folder: Path) -> str:
        return str(folder.relative_to(self._root))


def _claim_path(folder: Path, number: int) -> Path:
    return folder / f"claim-{number:06d}"


def _is_abandoned(folder: Path) -> bool:
    """Return whether the gateway that made a folder died before it accepted the batch."""
    return changed_s(folder / "batch.json") is None and _is_old(folder)


def _is_old(path: Path) -> bool:
    changed = changed_s(path)
    return changed is not None and time.time() - changed > UPLOAD_MAX_S


def _place_from(plain: Mapping[str, str]) -> str:
    return plain["folder"]
