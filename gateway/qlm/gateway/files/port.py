"""What a place for files and batches does. Its calls block: `Storage.call` runs them in threads.

Each call raises `StorageUnavailableError` if the place is away or refuses, which a later try may not meet.
"""

from collections.abc import Iterator, Mapping
from typing import BinaryIO, Literal, Protocol

from qlm.gateway.files.records import PAGE_MAX, Batch, BatchSpec, BatchState, Page, StoredFile

Part = Literal["output", "errors"]
"""The two results of a batch."""


class Incoming(Protocol):
    """Content that comes, piece by piece; it is no file before it is kept."""

    def write(self, data: bytes) -> None:
        """Take a piece."""

    def keep(self, name: str, purpose: str, lifetime_s: int) -> StoredFile:
        """Make a file of it, durably: whole, or not at all."""

    def discard(self) -> None:
        """Delete what was not kept; of a file that was kept, nothing."""


class FileStore(Protocol):
    """The files of all tenants, which several gateways may share."""

    def incoming(self, tenant: str) -> Incoming:
        """Return a place for content of a tenant that comes."""

    def get(self, tenant: str, id: str) -> StoredFile | None:
        """Return a file; None if the tenant has none with this id."""

    def open(self, tenant: str, id: str) -> BinaryIO:
        """Open the content of a file for reading, from any offset.

        Raises:
            FileNotFoundError: There is none.
        """

    def page(
        self,
        tenant: str,
        after: str | None = None,
        limit: int = PAGE_MAX,
        purpose: str | None = None,
        *,
        oldest_first: bool = False,
    ) -> Page[StoredFile]:
        """Return files of a tenant, newest first unless asked otherwise, and whether more follow.

        Args:
            tenant: The tenant.
            after: Id of the file behind which they begin; None for the first.
            limit: Most files.
            purpose: Their purpose; None for any.
            oldest_first: True for the other order.

        Raises:
            LookupError: The tenant has no such file to begin behind.
        """

    def used_bytes(self, tenant: str) -> int:
        """Return the size of all files of a tenant; of expired ones, too, until they are deleted."""

    def delete(self, tenant: str, id: str) -> bool:
        """Delete a file; False if the tenant has none with this id."""

    def sweep(self) -> None:
        """Delete expired files, and what is left of broken uploads."""


class Claim(Protocol):
    """The right of one gateway to run a batch, as long as no later claim exists, and what it has written.

    Attributes:
        number: Number of the claim.
        state: Progress, as it was last noted.
    """

    number: int
    state: BatchState

    def renew(self) -> bool:
        """Renew it; False if a later claim or an end exists."""

    def release(self) -> None:
        """Let another gateway claim the batch at once; if that fails, it can when the claim has run out."""

    def cancelled(self) -> bool:
        """Return whether the batch is to be cancelled."""

    def paused(self) -> bool:
        """Return whether no further lines of the batch are to begin."""

    def input(self) -> BinaryIO:
        """Open the input of the batch."""

    def begin(self) -> None:
        """Begin own results, which are empty."""

    def earlier(self, part: Part) -> Iterator[bytes]:
        """Yield the lines of earlier claims; of each claim the last one may be cut off."""

    def forget_earlier(self, part: Part) -> None:
        """Make own lines durable, then delete those of earlier claims."""

    def write(self, part: Part, line: bytes) -> None:
        """Add a line to own results; one call at a time."""

    def publish(self, part: Part, name: str, lifetime_s: int) -> str | None:
        """Make a file of own results; return its id, or None if there are none."""

    def note(self, state: BatchState) -> None:
        """Note progress under this claim."""

    def end(self, state: BatchState) -> bool:
        """End the batch, which is then to be closed; False if it has ended: this end is none."""

    def close(self) -> None:
        """Write no more; does not block."""


class BatchStore(Protocol):
    """The batches of all tenants, which several gateways may share. A `place` is where one of them is."""

    def new_id(self) -> str:
        """Return an unused id that cannot be guessed."""

    def add(self, spec: BatchSpec) -> Batch:
        """Accept a batch on the content of its input file, whose deletion then does not stop it.

        Raises:
            FileNotFoundError: There is no such file any more.
        """

    def get(self, tenant: str, id: str) -> Batch | None:
        """Return a batch; None if the tenant has none with this id."""

    def page(self, tenant: str, after: str | None = None, limit: int = PAGE_MAX) -> Page[Batch]:
        """Return batches of a tenant, newest first, and whether more follow.

        Args:
            tenant: The tenant.
            after: Id of the batch behind which they begin; None for the newest.
            limit: Most batches.

        Raises:
            LookupError: The tenant has no such batch to begin behind.
        """

    def count_open(self, tenant: str) -> int:
        """Count the batches of a tenant that have not ended."""

    def cancel(self, tenant: str, id: str) -> None:
        """Ask that a batch be cancelled."""

    def pause(self, tenant: str, id: str) -> None:
        """Ask that no further lines of a batch begin."""

    def resume(self, tenant: str, id: str) -> None:
        """Let the lines of a batch begin again."""

    def newest(self, limit: int = PAGE_MAX) -> list[Batch]:
        """Return batches of all tenants, newest first."""

    def find(self, id: str) -> Batch | None:
        """Return the batch with an id, of any tenant; None if there is none."""

    def open_places(self) -> Mapping[str, str]:
        """Return the places of the batches that have not ended, by id."""

    def read(self, place: str) -> Batch | None:
        """Return the batch in a place; None if it is not there, or not yet."""

    def claim(self, place: str) -> Claim | None:
        """Claim a batch that no gateway runs; None if one does, or if it has ended."""

    def close(self, place: str) -> None:
        """Take an ended batch out of those to run, and delete what only its run needed."""

    def sweep(self, kept_s: int) -> None:
        """Delete batches that ended long ago."""
