"""File of finished seeds: one JSON line per seed, so that an interrupted run goes on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import click
import orjson


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of one seed.

    Attributes:
        seed: The seed.
        faults: Kinds of its faults.
        requests: Number of its requests.
        violations: Sentences of the checkers.
        coverage: Occurrences of each state.
        took_s: Processor time.
    """

    seed: int
    faults: Sequence[str]
    requests: int
    violations: Sequence[str]
    coverage: Mapping[str, int]
    took_s: float


@dataclass(slots=True)
class Total:
    """Sums over seeds.

    Attributes:
        seeds: Number of seeds.
        requests: Number of requests.
        failed: Number of seeds with violations.
        took_s: Processor time.
        kinds: Number of seeds with each kind of fault.
        coverage: Occurrences of each state.
    """

    seeds: int = 0
    requests: int = 0
    failed: int = 0
    took_s: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    coverage: Counter[str] = field(default_factory=Counter)

    def add(self, summary: Summary) -> None:
        """Add one seed."""
        self.seeds += 1
        self.requests += summary.requests
        self.failed += bool(summary.violations)
        self.took_s += summary.took_s
        self.kinds.update(set(summary.faults))
        self.coverage.update(summary.coverage)

    def text(self) -> str:
        """Return the sums in one sentence."""
        return (
            f"{self.seeds} seeds, {self.requests} requests, {self.failed} seeds with violations; "
            f"{self.took_s:.1f} s of processor time, {self.took_s / max(1, self.seeds):.3f} s per seed"
        )


class SeedFile:
    """Finished seeds, in a file or only in memory.

    Attributes:
        seeds: The seeds that it has.
        total: Sums over them.
    """

    def __init__(self, lines: IO[bytes] | None) -> None:
        """Use `open` instead."""
        self._lines = lines
        self.seeds: set[int] = set()
        self.total = Total()

    @classmethod
    def open(cls, path: Path | None, kinds: Sequence[str] | None) -> "SeedFile":
        """Open a file, made if missing; without a path, keep the seeds in memory.

        Raises:
            ClickException: The file is of a run with other kinds of faults.
        """
        if path is None:
            return cls(None)
        head, *found = path.read_bytes().splitlines() if path.exists() else (b"",)
        wanted = orjson.dumps({"kinds": kinds})
        if head not in (b"", wanted):
            raise click.ClickException(f"{path} belongs to a run with other kinds of faults: {head.decode()}")
        file = cls(path.open("ab"))
        for line in found:
            file._read(line)
        file._write(b"" if found and not path.read_bytes().endswith(b"\n") else None)
        if not head:
            file._write(wanted)
        return file

    def add(self, summary: Summary) -> None:
        """Add a finished seed."""
        self._take(summary)
        self._write(orjson.dumps(asdict(summary)))

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        if self._lines is not None:
            self._lines.close()

    def _read(self, line: bytes) -> None:
        try:
            self._take(Summary(**orjson.loads(line)))
        except (orjson.JSONDecodeError, TypeError):
            return  # a line that the end of a run has cut: its seed runs again

    def _take(self, summary: Summary) -> None:
        if summary.seed not in self.seeds:
            self.seeds.add(summary.seed)
            self.total.add(summary)

    def _write(self, line: bytes | None) -> None:
        if self._lines is not None and line is not None:
            self._lines.write(line + b"\n")
            self._lines.flush()
