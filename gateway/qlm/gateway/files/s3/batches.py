"""Batches in a bucket, and the claim of the gateway that runs one.

Below `<tenant>/batches/<id>/` are
* `batch.json`: what was asked for; never changed, and written last,
* `input`: a copy of the input file,
* `claim.json`: the last claim with its renewals; each is written under the condition that the one before is
  still there, so that only one gateway can make it,
* `state-N.json`, `output-N-M`, `errors-N-M`: progress under the N-th claim, written by its gateway alone,
* `cancel`, `pause`: its client asked for that, at their time of change,
* `end.json`: how it ended; written under the condition that there is none, and final.

`open/<tenant>/<id>` names a batch that has not ended. An id begins with its time, so that the newest batch
has the first key; those of ids without are listed last.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import groupby, islice, takewhile
from typing import Final

from qlm.domain.ports.clock import Clock
from qlm.gateway.files.records import (
    BATCH_PREFIX,
    CLAIM_TTL_S,
    ID_BYTES,
    PAGE_MAX,
    TIMED,
    UPLOAD_MAX_S,
    Batch,
    BatchSpec,
    BatchState,
    Page,
    RandomHex,
    is_id,
    is_tenant_name,
    newest_first,
    page_after,
    spec_from,
    state_from,
    tenant_name,
    timed_hex,
)
from qlm.gateway.files.s3.bucket import Bucket, Entry
from qlm.gateway.files.s3.claim import S3Claim
from qlm.gateway.files.s3.files import S3Files, content_key
from qlm.gateway.files.s3.known import KnownJson
from qlm.gateway.files.threads import DaemonThreads

_BATCHES: Final = "batches"
_RUN_ONLY: Final = ("input", "output-", "errors-", "state-")
_AT_ONCE: Final = 8

Found = Mapping[str, Entry]
"""The objects of one batch, by name."""


class S3Batches:
    """The batches of all tenants in a bucket, which several gateways may share."""

    def __init__(
        self,
        bucket: Bucket,
        files: S3Files,
        known: KnownJson,
        clock: Clock,
        random_hex: RandomHex,
        claim_ttl_s: float = CLAIM_TTL_S,
    ) -> None:
        """Use the bucket of the files."""
        self._bucket = bucket
        self._files = files
        self._known = known
        self._clock = clock
        self._random_hex = random_hex
        self._claim_ttl_s = claim_ttl_s
        self._threads = DaemonThreads(_AT_ONCE, "qlm-s3-batches")

    def new_id(self) -> str:
        """Return an unused id that cannot be guessed."""
        return BATCH_PREFIX + timed_hex(self._clock.now_ns() // 10**9, self._random_hex)

    def add(self, spec: BatchSpec) -> Batch:
        """Accept a batch on a copy of its input file, whose deletion then does not stop it.

        Raises:
            FileNotFoundError: There is no such file any more.
        """
        place = self._place(spec.tenant, spec.id)
        self._bucket.copy(content_key(spec.tenant, spec.input_file_id), f"{place}/input")
        self._bucket.put(_open_key(place), b"")
        self._bucket.put_json(f"{place}/batch.json", asdict(spec))
        return Batch(spec=spec, state=BatchState(), cancel_s=None, ended=False)

    def get(self, tenant: str, id: str) -> Batch | None:
        """Return a batch; None if the tenant has none with this id."""
        return self.read(self._place(tenant, id)) if is_id(id, BATCH_PREFIX) else None

    def page(self, tenant: str, after: str | None = None, limit: int = PAGE_MAX) -> Page[Batch]:
        """Return batches of a tenant, newest first, and whether more follow.

        Raises:
            LookupError: The tenant has no such batch to begin behind.
        """
        if after is not None and self.get(tenant, after) is None:
            raise LookupError(after)
        found = list(islice(self._behind(tenant, after, limit + 1), limit + 1))
        return found[:limit], len(found) > limit

    def count_open(self, tenant: str) -> int:
        """Count the batches of a tenant that have not ended."""
        found = self._places(f"{tenant_name(tenant)}/{_BATCHES}/").values()
        return sum("batch.json" in names and "end.json" not in names for names in found)

    def cancel(self, tenant: str, id: str) -> None:
        """Ask that a batch be cancelled."""
        self._bucket.put_json_if(f"{self._place(tenant, id)}/cancel", {})

    def pause(self, tenant: str, id: str) -> None:
        """Ask that no further lines of a batch begin; an earlier pause keeps its time."""
        self._bucket.put_json_if(f"{self._place(tenant, id)}/pause", {})

    def resume(self, tenant: str, id: str) -> None:
        """Let the lines of a batch begin again."""
        self._bucket.delete(f"{self._place(tenant, id)}/pause")

    # --- operators

    def newest(self, limit: int = PAGE_MAX) -> list[Batch]:
        """Return batches of all tenants, newest first."""
        found = self._places("")
        timed = sorted(filter(_is_timed, found), key=_id_of)
        batches = list(islice(self._read_some(((each, found[each]) for each in timed), limit), limit))
        others = {place: names for place, names in found.items() if not _is_timed(place)}
        return batches if len(batches) == limit else [*batches, *self._newest_first(others)][:limit]

    def find(self, id: str) -> Batch | None:
        """Return the batch with an id, of any tenant; None if there is none."""
        if not is_id(id, BATCH_PREFIX):
            return None
        found = {place: names for place, names in self._places("").items() if place.endswith(f"/{id}")}
        return next(iter(self._newest_first(found)), None)

    # --- gateways that run batches

    def open_places(self) -> dict[str, str]:
        """Return the prefixes of the batches that have not ended, by id."""
        found = {}
        for key in self._bucket.keys("open/"):
            tenant, _, id = key.removeprefix("open/").partition("/")
            if is_tenant_name(tenant) and is_id(id, BATCH_PREFIX):  # others may use the bucket, too
                found[id] = f"{tenant}/{_BATCHES}/{id}"
        return dict(sorted(found.items()))

    def read(self, place: str) -> Batch | None:
        """Return the batch below a prefix; None if it is not there, or not yet."""
        return self._read(place, self._names(place))

    def claim(self, place: str) -> S3Claim | None:
        """Claim a batch that no gateway runs; None if one does, or if it has ended."""
        last = self._bucket.get_stamped(f"{place}/claim.json")
        if last is not None and not last.value["released"] and last.age_s <= self._claim_ttl_s:
            return None
        batch = self.read(place)
        if batch is None or batch.ended:
            return None
        number = 1 if last is None else last.value["number"] + 1
        owner = self._random_hex(ID_BYTES)
        value = {"number": number, "owner": owner, "renewals": 0, "released": False}
        etag = self._bucket.put_json_if(f"{place}/claim.json", value, None if last is None else last.etag)
        if etag is None:
            return None
        return S3Claim(
            bucket=self._bucket,
            place=place,
            tenant=batch.spec.tenant,
            number=number,
            value=value,
            etag=etag,
            state=batch.state,
            files=self._files,
            clock=self._clock,
        )

    def close(self, place: str) -> None:
        """Take an ended batch out of those to run, and delete what only its run needed."""
        self._bucket.delete(_open_key(place))
        self._bucket.delete(*(f"{place}/{name}" for name in self._names(place) if name.startswith(_RUN_ONLY)))

    def sweep(self, kept_s: int) -> None:
        """Delete batches that ended long ago, and what is left of those that were never whole."""
        now_s = self._clock.now_ns() // 10**9
        for place, names in self._places("").items():
            end = self._known.get(f"{place}/end.json") if "end.json" in names else None
            if (end is not None and end["ended_s"] + kept_s <= now_s) or self._is_rest(names):
                first = f"{place}/batch.json"  # what is left of a broken deletion is no batch
                self._bucket.delete(first, _open_key(place), *(f"{place}/{name}" for name in names))

    # --- small parts

    def _is_rest(self, names: Found) -> bool:
        if "batch.json" in names:
            return False
        return self._bucket.now_s() - max(each.changed_s for each in names.values()) > UPLOAD_MAX_S

    def _behind(self, tenant: str, after: str | None, at_once: int) -> Iterator[Batch]:
        """Yield the batches behind one, newest first, as they are asked for; so many are read at once."""
        folder = f"{tenant_name(tenant)}/{_BATCHES}/"
        timed = f"{folder}{BATCH_PREFIX}{TIMED}"
        if after is None or after.startswith(BATCH_PREFIX + TIMED):
            start = timed if after is None else f"{folder}{after}0"  # what follows `<after>/...`
            yield from self._read_some(_by_place(self._bucket.entries(folder, start)), at_once)
            after = None
        others = takewhile(lambda each: each.key < timed, self._bucket.entries(folder))
        batches = self._newest_first(dict(_by_place(others)))
        yield from page_after(batches, [each.spec.id for each in batches], after, len(batches))[0]

    def _read_some(self, found: Iterator[tuple[str, Found]], at_once: int) -> Iterator[Batch]:
        while some := dict(islice(found, at_once)):
            for each in self._threads.map(self._read, some.keys(), some.values()):
                if each is not None:
                    yield each

    def _newest_first(self, found: Mapping[str, Found]) -> list[Batch]:
        batches: Iterable[Batch | None] = self._threads.map(self._read, found.keys(), found.values())
        return newest_first(each for each in batches if each is not None)

    def _read(self, place: str, names: Found) -> Batch | None:
        plain = self._known.get(f"{place}/batch.json") if "batch.json" in names else None
        if plain is None:
            return None
        end = self._known.get(f"{place}/end.json") if "end.json" in names else None
        state = self._latest_state(place, names) if end is None else state_from(end)
        cancel, pause = names.get("cancel"), names.get("pause")
        return Batch(
            spec=spec_from(plain),
            state=state,
            cancel_s=None if cancel is None else int(cancel.changed_s),
            ended=end is not None,
            pause_s=None if pause is None or end is not None else int(pause.changed_s),
        )

    def _latest_state(self, place: str, names: Found) -> BatchState:
        for name in sorted((name for name in names if name.startswith("state-")), reverse=True):
            if (plain := self._bucket.get_json(f"{place}/{name}")) is not None:
                return state_from(plain)
        return BatchState()

    def _names(self, place: str) -> Found:
        return {each.key.removeprefix(f"{place}/"): each for each in self._bucket.entries(f"{place}/")}

    def _places(self, prefix: str) -> dict[str, Found]:
        """Return the objects of batches whose keys begin so, by place and name."""
        return dict(_by_place(self._bucket.entries(prefix)))

    def _place(self, tenant: str, id: str) -> str:
        return f"{tenant_name(tenant)}/{_BATCHES}/{id}"


def _by_place(entries: Iterable[Entry]) -> Iterator[tuple[str, Found]]:
    """Yield the places of batches with their objects; the bucket may have objects of others, too."""
    for place, found in groupby(entries, lambda each: "/".join(each.key.split("/", 3)[:3])):
        tenant, _, rest = place.partition("/")
        kind, _, id = rest.partition("/")
        if kind == _BATCHES and is_tenant_name(tenant) and is_id(id, BATCH_PREFIX):
            names = {each.key[len(place) + 1 :]: each for each in found}
            names.pop("", None)
            if names:
                yield place, names


def _id_of(place: str) -> str:
    return place.rpartition("/")[2]


def _is_timed(place: str) -> bool:
    return _id_of(place).startswith(BATCH_PREFIX + TIMED)


def _open_key(place: str) -> str:
    tenant, _, id = place.split("/")
    return f"open/{tenant}/{id}"
