"""Discovery of the tests of a contract suite, for implementations that need an event loop of their own."""

from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

SUITES = Path(__file__).parent

Check = Callable[[Any], Awaitable[None]]
"""Test of a contract; it takes the implementation under test."""


def checks_of(port: str) -> Sequence[Check]:
    """Return every test of the store's or the broker's suite, in order of file and line."""
    paths = sorted((SUITES / port).glob("test_*.py"))
    modules = [import_module(f"contract.suites.{port}.{path.stem}") for path in paths]
    return [
        each
        for module in modules
        for name, each in vars(module).items()
        if name.startswith("test_") and iscoroutinefunction(each)
    ]
