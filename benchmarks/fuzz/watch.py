"""Watch over the processes of QLM: memory, logs, ends."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.fuzz.verdict import Finding
from benchmarks.process_figures import group_figures
from support.qlm_process import QlmProcess

GROWTH_MAX: Final = 0.2
"""Growth of a process over its level after warm-up that is a finding."""

TRACEBACK: Final = "Traceback (most recent call last)"
_LAST: Final = 5
"""Readings of which the median is a level."""


class Watch:
    """Readings of the processes since it began."""

    def __init__(self, processes: Sequence[QlmProcess]) -> None:
        """Watch processes that run."""
        self._processes = processes
        self._seen = {each.name: each.log_file.stat().st_size for each in processes}
        self._ended: set[str] = set()
        self._levels: dict[str, float] = {}
        self.memory_mb: dict[str, list[float]] = {each.name: [] for each in processes}
        self.log_lines = 0

    def look(self, where: str) -> Iterator[Finding]:
        """Take a reading, and yield what is wrong; `where` says which requests are under way."""
        for each in self._processes:
            if not each.alive:
                if each.name not in self._ended:
                    yield Finding(part=each.name, number=None, what=f"it ended ({each.exit_code}) {where}")
                self._ended.add(each.name)
                continue
            self.memory_mb[each.name].append(group_figures(each.pid).rss_mb)
            text = self._new_text(each.name, each.log_file)
            self.log_lines += text.count("\n")
            if TRACEBACK in text:
                at = text.index(TRACEBACK)
                yield Finding(
                    part=each.name, number=None, what=f"{where}: {text[max(0, at - 300) : at + 4000]}"
                )

    def warmed_up(self) -> None:
        """Take the present memory as each process's level after warm-up."""
        self._levels = {name: statistics.median(read[-_LAST:]) for name, read in self.memory_mb.items()}

    def growth(self) -> dict[str, tuple[float, float]]:
        """Return the memory of each process after warm-up and now, MB."""
        now = {name: statistics.median(read[-_LAST:]) for name, read in self.memory_mb.items()}
        return {name: (level, now[name]) for name, level in self._levels.items()}

    def grown(self) -> Iterator[Finding]:
        """Yield the processes that have grown too much."""
        for name, (level, now) in self.growth().items():
            if now > level * (1 + GROWTH_MAX):
                yield Finding(
                    part=name, number=None, what=f"memory {level:.0f} MB after warm-up, {now:.0f} MB now"
                )

    def _new_text(self, name: str, file: Path) -> str:
        with file.open("rb") as log:
            log.seek(self._seen[name])
            data = log.read()
        self._seen[name] += len(data)
        return data.decode("utf-8", "replace")
