"""What files and batches are, wherever they are kept."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

Page = tuple[Sequence[T], bool]
"""A part of a list, and whether more follow."""

PAGE_MAX: Final = 10_000
"""Most entries of a part of a list."""

RandomHex = Callable[[int], str]
"""Returns so many random bytes as hexadecimal digits, such as `secrets.token_hex`."""

ID_BYTES: Final = 16
"""Random bytes of an id: it cannot be guessed."""

FILE_PREFIX: Final = "file-"

BATCH_PREFIX: Final = "batch_"

CLAIM_TTL_S: Final = 15.0
"""A claim of a batch that was not renewed for this time is another gateway's to replace."""

_TENANT_DIGITS: Final = 40

_TIME_BYTES: Final = 5
_TIME_END: Final = 2 ** (8 * _TIME_BYTES) - 1

TIMED: Final = "ff"
"""First digits of ids that begin with their time, until the year 2106."""

UPLOAD_MAX_S: Final = 86_400.0
"""Age at which what is left of a broken upload is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a client.

    Attributes:
        id: Its id.
        name: Name that its client gave it.
        purpose: OpenAI's: `batch` for input, `batch_output` for output and errors of a batch.
        size_bytes: Its size.
        created_s: Its creation, seconds since the epoch.
        expires_s: The time at which it is deleted, seconds since the epoch.
    """

    id: str
    name: str
    purpose: str
    size_bytes: int
    created_s: int
    expires_s: int


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


def is_id(id: str, prefix: str) -> bool:
    """Return whether a text can be an id, and so the name of a file."""
    digits = id.removeprefix(prefix)
    return id != digits and len(digits) == 2 * ID_BYTES and set(digits) <= set("0123456789abcdef")


def timed_hex(now_s: int, random_hex: RandomHex) -> str:
    """Return the digits of an id that cannot be guessed, and that comes before those of earlier seconds."""
    return f"{_TIME_END - now_s:0{2 * _TIME_BYTES}x}" + random_hex(ID_BYTES - _TIME_BYTES)


def tenant_name(tenant: str) -> str:
    """Return the name of the folder of all that a tenant has; names of tenants may have any characters."""
    return hashlib.sha256(tenant.encode("utf-8", "surrogateescape")).hexdigest()[:_TENANT_DIGITS]


def is_tenant_name(name: str) -> bool:
    """Return whether a text can be the name of a tenant's folder: others may use the place, too."""
    return len(name) == _TENANT_DIGITS and set(name) <= set("0123456789abcdef")


def file_from(plain: Mapping[str, Any]) -> StoredFile:
    """Return a file from its JSON."""
    return StoredFile(**{name: plain[name] for name in StoredFile.__slots__})


def spec_from(plain: Mapping[str, Any]) -> BatchSpec:
    """Return what a client asked for from its JSON."""
    return BatchSpec(**{name: plain[name] for name in BatchSpec.__slots__})


def state_from(plain: Mapping[str, Any]) -> BatchState:
    """Return the progress of a batch from its JSON."""
    known = {name: plain[name] for name in BatchState.__slots__}
    return BatchState(**known | {"errors": tuple(known["errors"])})


def page_after(found: Sequence[T], ids: Sequence[str], after: str | None, limit: int) -> Page[T]:
    """Return a part of a list, and whether more follow.

    Args:
        found: The whole list.
        ids: Their ids.
        after: Id behind which the part begins; None for the beginning.
        limit: Most entries.

    Raises:
        LookupError: There is no such id.
    """
    if after is not None and after not in ids:
        raise LookupError(after)
    start = 0 if after is None else ids.index(after) + 1
    return found[start : start + limit], start + limit < len(found)


def newest_first(batches: Iterable[Batch]) -> list[Batch]:
    """Return batches in the order of lists."""
    return sorted(batches, key=lambda each: (each.spec.created_s, each.spec.id), reverse=True)


def newest_files_first(files: Iterable[StoredFile]) -> list[StoredFile]:
    """Return files in the order of lists."""
    return sorted(files, key=lambda each: (each.created_s, each.id), reverse=True)
