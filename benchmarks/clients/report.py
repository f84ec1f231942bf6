"""Results of the suites: counts and reasons, read from the JUnit file that pytest writes."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one suite.

    Attributes:
        versions: What was tested, such as `openai 3.57.0`.
        passed: Number of tests that passed.
        failed: Their names, or what kept the suite from running.
        skipped: Reasons with the number of tests that each kept from running, or from having to pass.
        seconds: How long it took.
    """

    suite: str
    versions: str
    passed: int = 0
    failed: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def read(suite: str, versions: str, file: Path, exit_code: int, seconds: float) -> Outcome:
    """Read the report of a suite that ended; a bad end without a failed test is a failure, too."""
    cases = list(ElementTree.parse(file).getroot().iter("testcase")) if file.exists() else []
    failed = [case.get("name", "") for case in cases if _has(case, "failure", "error")]
    reasons = Counter(each.get("message", "") for case in cases for each in case.iter("skipped"))
    passed = len(cases) - len(failed) - reasons.total()
    if not failed and (exit_code != 0 or not passed):
        failed = [f"the suite ended with {exit_code}"]
    return Outcome(suite, versions, passed, failed, reasons, seconds)


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of the table, and below it what was skipped and what failed."""
    yield f"{'suite':16}{'versions':44}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}"
    for each in outcomes:
        counts = f"{each.passed:8}{len(each.failed):8}{sum(each.skipped.values()):8}{each.seconds:9.0f}"
        yield f"{each.suite:16}{each.versions:44}{counts}"
    for each in outcomes:
        for reason, count in sorted(each.skipped.items()):
            yield f"{each.suite}: {count} skipped: {' '.join(reason.split())}"
    for each in outcomes:
        for name in each.failed:
            yield f"{each.suite}: FAILED: {name}"


def _has(case: ElementTree.Element, *kinds: str) -> bool:
    return any(case.find(kind) is not None for kind in kinds)
