"""Reports of `make clients`: what pytest and Node.js wrote becomes counts, reasons and names."""

from pathlib import Path

import pytest

from benchmarks.clients import report, versions
from benchmarks.clients.suites import SUITES

PYTEST = """<testsuites><testsuite name="pytest">
<testcase name="test_chat"/><testcase name="test_tools"><failure message="no call">...</failure></testcase>
<testcase name="test_started"><error message="refused">...</error></testcase>
<testcase name="test_hooks"><skipped type="pytest.skip" message="none">...</skipped></testcase>
<testcase name="test_agent"><skipped type="pytest.xfail" message="none"/></testcase>
</testsuite></testsuites>"""


def outcome(folder: Path, text: str | None, exit_code: int) -> report.Outcome:
    file = folder / "report.xml"
    if text is not None:
        file.write_text(text, "utf-8")
    return report.read("some", "client 1.0", file, exit_code, 2.0)


def test_each_test_is_counted_once(tmp_path: Path) -> None:
    found = outcome(tmp_path, PYTEST, 1)
    assert (found.passed, found.failed, found.skipped) == (1, ["test_tools", "test_started"], {"none": 2})
    lines = list(report.table([found]))
    assert lines[1].split() == ["some", "client", "1.0", "1", "2", "2", "2"]
    assert lines[2:] == [
        "some: 2 skipped: none",
        "some: FAILED: test_tools",
        "some: FAILED: test_started",
    ]


@pytest.mark.parametrize(
    ("text", "exit_code"),
    [
        (None, -1),  # killed at its limit, before it wrote a report
        ("<testsuites/>", 0),  # ran nothing
        ('<testsuites><testcase name="test_chat"/></testsuites>', 3),  # broke after its tests
    ],
)
def test_a_suite_that_ends_badly_has_failed(tmp_path: Path, text: str | None, exit_code: int) -> None:
    assert outcome(tmp_path, text, exit_code).failed == [f"the suite ended with {exit_code}"]


def test_a_suite_that_passes_has_no_failures(tmp_path: Path) -> None:
    found = outcome(tmp_path, '<testsuites><testcase name="chat"/></testsuites>', 0)
    assert (found.passed, found.failed, found.skipped) == (1, [], {})


def test_each_suite_has_a_locked_version() -> None:
    for suite in SUITES:
        assert len(versions.locked(suite).split(", ")) == len(suite.packages), suite.name
