"""Progress of a run, which a later run resumes."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.fuzz.verdict import Finding
from benchmarks.steady import quantile_ms

SLOWER_MAX: Final = 2.0
"""Largest P99 of the well-behaved client beside the others, in multiples of its P99 alone."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """Counts and findings of all runs of a seed.

    Attributes:
        seed: The seed.
        http: HTTP requests sent; their numbers are those below.
        rpc: gRPC calls sent.
        statuses: Answers by status.
        memory_mb: Memory of each process after warm-up and at the end of each run, MB.
        log_lines: Lines in the logs of all processes.
        p99_ms: P99 of the well-behaved client in each run, alone and beside.
        findings: The findings.
    """

    seed: int
    http: int = 0
    rpc: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    memory_mb: list[dict[str, tuple[float, float]]] = field(default_factory=list)
    log_lines: int = 0
    p99_ms: list[tuple[float, float]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def compare(self, alone: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]]) -> None:
        """Compare the well-behaved client's answers, alone and beside the others."""
        for each in (*alone, *beside):
            if each["wrong"]:
                self.findings.append(_of_client(each["wrong"]))
        p99_ms = quantile_ms(alone, 0.99), quantile_ms(beside, 0.99)
        self.p99_ms.append(p99_ms)
        if p99_ms[1] > SLOWER_MAX * p99_ms[0]:
            self.findings.append(_of_client(f"P99 {p99_ms[1]:.0f} ms, alone {p99_ms[0]:.0f} ms"))

    def plain(self) -> dict[str, Any]:
        """Return it as JSON."""
        findings = [asdict(each) for each in self.findings]
        return {each: getattr(self, each) for each in self.__slots__} | {"findings": findings}

    def report(self, again: str) -> str:
        """Return all as text; `again` begins the command that sends one request again."""
        counts = ", ".join(f"{status} {number}" for status, number in sorted(self.statuses.items()))
        lines = [
            f"{self.http} HTTP requests, {self.rpc} gRPC calls; {counts}",
            f"log lines: {self.log_lines}",
        ]
        for memory_mb, p99_ms in zip(self.memory_mb, self.p99_ms, strict=True):
            shown = ", ".join(
                f"{name} {level:.0f} -> {now:.0f} MB" for name, (level, now) in memory_mb.items()
            )
            lines.append(
                f"memory: {shown}; well-behaved P99 {p99_ms[0]:.1f} ms alone, {p99_ms[1]:.1f} ms beside"
            )
        for each in self.findings:
            number = "" if each.number is None else f' {again} {each.part}:{each.number}"'
            lines.append(f"finding: {each.part}: {each.what}{number}")
        return "\n".join((*lines, f"{len(self.findings)} findings"))


def _of_client(what: str) -> Finding:
    return Finding(part="well-behaved client", number=None, what=what)


def load(file: Path, seed: int, *, resumed: bool) -> Progress:
    """Return the saved progress of a seed, or a new one."""
    if not resumed or not file.exists():
        return Progress(seed=seed)
    plain = json.loads(file.read_text("utf-8"))
    plain["statuses"] = Counter(plain["statuses"])
    plain["findings"] = [Finding(**each) for each in plain["findings"]]
    return Progress(**plain)
