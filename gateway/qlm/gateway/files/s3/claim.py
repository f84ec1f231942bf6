"""The claim of a gateway to a batch in a bucket, and the objects that it alone writes.

`claim.json` has one content for each claim and renewal, written under the condition that the one before is
still there. Results are pieces of whole lines; the last piece is written anew as it grows.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from typing import Any, BinaryIO, Final, get_args

from qlm.domain.errors import QlmError
from qlm.domain.ports.clock import Clock
from qlm.gateway.files.port import Part
from qlm.gateway.files.records import BatchState
from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.files import S3Files
from qlm.gateway.files.s3.reader import open_object

PIECE_BYTES: Final = 1024 * 1024
"""Size at which a piece of results is full."""

_PARTS: Final[tuple[Part, ...]] = get_args(Part)


class _Pieces:
    """The lines of one part of the results."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._lock = Lock()
        self._full = 0
        self._buffer = bytearray()
        self._unwritten = False

    def add(self, line: bytes) -> None:
        with self._lock:
            self._buffer += line
            self._unwritten = True
            if len(self._buffer) >= PIECE_BYTES:
                self._flush()
                self._full += 1
                self._buffer.clear()

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def keys(self) -> list[str]:
        return [self._piece(number) for number in range(self._full + bool(self._buffer))]

    def _flush(self) -> None:
        if self._unwritten:
            self._bucket.put(self._piece(self._full), bytes(self._buffer))
            self._unwritten = False

    def _piece(self, number: int) -> str:
        return f"{self._key}-{number:06d}"


@dataclass(slots=True, kw_only=True)
class S3Claim:
    """The right to run a batch, as long as no later claim exists.

    Attributes:
        bucket: The bucket.
        place: Prefix of the batch.
        tenant: Its tenant.
        number: Number of the claim.
        value: Content of `claim.json`, as it was last written.
        etag: Version of it; None once the claim is lost or released.
        state: Progress, as it was last written.
        files: Where its results go.
        clock: The clock.
        parts: The results that it writes.
    """

    bucket: Bucket
    place: str
    tenant: str
    number: int
    value: dict[str, Any]
    etag: str | None
    state: BatchState
    files: S3Files
    clock: Clock
    parts: dict[Part, _Pieces] = field(default_factory=dict)

    def renew(self) -> bool:
        """Renew it; False if a later claim or an end exists."""
        if self.bucket.size_bytes(f"{self.place}/end.json") is not None:
            return False
        return self._rewrite(renewals=self.value["renewals"] + 1)

    def release(self) -> None:
        """Let another gateway claim the batch at once; if that fails, it can when the claim has run out."""
        with contextlib.suppress(QlmError):
            if self.etag is not None:
                self._flush()
                self._rewrite(released=True)
        self.etag = None

    def cancelled(self) -> bool:
        """Return whether the batch is to be cancelled."""
        return self.bucket.size_bytes(f"{self.place}/cancel") is not None

    def paused(self) -> bool:
        """Return whether no further lines of the batch are to begin."""
        return self.bucket.size_bytes(f"{self.place}/pause") is not None

    def input(self) -> BinaryIO:
        """Open the input of the batch."""
        return open_object(self.bucket, f"{self.place}/input")

    # --- results

    def begin(self) -> None:
        """Begin own results, which are empty."""
        for part in _PARTS:
            self.parts[part] = _Pieces(self.bucket, self._own(part))

    def earlier(self, part: Part) -> Iterator[bytes]:
        """Yield the lines of earlier claims."""
        for key in self._earlier(part):
            yield from io.BytesIO(self.bucket.get(key) or b"")

    def forget_earlier(self, part: Part) -> None:
        """Make own lines durable, then delete those of earlier claims."""
        self.parts[part].flush()
        self.bucket.delete(*self._earlier(part))

    def write(self, part: Part, line: bytes) -> None:
        """Add a line to own results; one call at a time."""
        self.parts[part].add(line)

    def publish(self, part: Part, name: str, lifetime_s: int) -> str | None:
        """Make a file of own results; return its id, or None if there are none."""
        pieces = self.parts[part]
        pieces.flush()
        if not (keys := pieces.keys()):
            return None
        incoming = self.files.incoming(self.tenant)
        try:
            for key in keys:
                incoming.write(self.bucket.get_range(key, 0, 2**40))
            return incoming.keep(name, "batch_output", lifetime_s).id
        finally:
            incoming.discard()

    def note(self, state: BatchState) -> None:
        """Note progress under this claim, and make the lines that it counts durable."""
        self.state = state
        self._flush()
        self.bucket.put_json(f"{self._own('state')}.json", asdict(state))

    def end(self, state: BatchState) -> bool:
        """End the batch, which is then to be closed; False if it has ended: this end is none."""
        state = replace(state, ended_s=self.clock.now_ns() // 10**9)
        value = asdict(state) | {"claim": self.value["owner"]}
        if self.bucket.put_json_if(f"{self.place}/end.json", value) is None:
            return False
        self.state = state
        self.parts.clear()
        return True

    def close(self) -> None:
        """Do nothing: no object is open."""

    def _flush(self) -> None:
        for pieces in self.parts.values():
            pieces.flush()

    def _rewrite(self, **changes: Any) -> bool:
        """Write `claim.json` anew; False if another claim has replaced it, and this one is lost."""
        if self.etag is None:
            return False
        self.value = self.value | changes
        self.etag = self.bucket.put_json_if(f"{self.place}/claim.json", self.value, self.etag)
        return self.etag is not None

    def _own(self, what: str) -> str:
        return f"{self.place}/{what}-{self.number:06d}"

    def _earlier(self, part: Part) -> list[str]:
        return [key for key in self.bucket.keys(f"{self.place}/{part}-") if key < self._own(part)]
