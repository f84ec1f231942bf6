"""Completeness of the contract suites: every check runs on every implementation."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.suites.checks import SUITES, checks_of

ROOT = Path(__file__).resolve().parents[2]
IMPLEMENTATIONS = {
    "subject": ("memory", "sqlite", "process", "redis"),
    "storage": ("sqlite", "process", "rabbitmq", "rabbitmq-quorum"),
    "ordered_storage": ("sqlite", "process", "rabbitmq"),
    "bearer": ("memory", "redis", "rabbitmq", "rabbitmq-quorum"),
    "server": ("emulated", "vllm"),
    "place": ("disk", "s3"),
    "mortal": ("emulated", "emulated-terminated", "vllm"),
}
"""Implementations that a check runs on, by the fixture it takes."""


def _checks(path: Path) -> Iterator[ast.AsyncFunctionDef]:
    """Every function of a suite that could be meant as a check, whatever its name."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node


def _expected(port: str) -> Iterator[str]:
    for path in (SUITES / port).glob("test_*.py"):
        for check in _checks(path):
            for implementation in IMPLEMENTATIONS[check.args.args[0].arg]:
                yield f"{path.relative_to(ROOT)}::{check.name}[{implementation}]"


@pytest.mark.parametrize("port", ["store", "broker", "deployment", "engine", "files"])
def test_pytest_runs_every_check_on_every_implementation(port: str) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(SUITES / port)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    collected = {line for line in listed.splitlines() if "::" in line}
    assert collected == set(_expected(port))


@pytest.mark.parametrize("port", ["store", "broker"])
def test_the_simulation_runs_every_check(port: str) -> None:
    names = {check.name for path in (SUITES / port).glob("test_*.py") for check in _checks(path)}
    assert {check.__name__ for check in checks_of(port)} == names
