"""Compiled code is kept, but never longer than the sources that it was made of."""

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from qlm.planner.compiling.compiled import compiled

pytestmark = pytest.mark.timeout(400)

_PRICE = """
from qlm.planner.fast.penalty import summed_penalty

print(summed_penalty(1.0, 5.0, 0.0, 0.0, 0.0, 0.0, 600.0, 0.0), sum(summed_penalty.stats.cache_hits.values()))
"""
"""Prints what a request costs that is certainly 5 s late, and whether its code was kept."""

_ANNEALER = """
from qlm.agents.batching.policies.annealing.compiling import annealer

print(sum(annealer(compiled=True).stats.cache_hits.values()))
"""
"""Prints whether the code of the batch policy was kept."""


class Copies:
    """Copies of components, whose code is compiled into a folder of their own."""

    def __init__(self, root: Path, *names: str) -> None:
        self._root = root
        for name in names:
            source = Path(import_module(f"qlm.{name}").__path__[0])
            shutil.copytree(source, root / "qlm" / name, ignore=shutil.ignore_patterns("__py*"))

    def change(self, path: str, old: str, new: str) -> None:
        """Change the text of a file."""
        file = self._root / "qlm" / path
        text = file.read_text("utf-8")
        assert old in text
        file.write_text(text.replace(old, new), "utf-8")

    def printed(self, code: str) -> str:
        """Run code in a new interpreter; return what it prints."""
        paths = os.pathsep.join([str(self._root), *sys.path])
        environment = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(self._root / "compiled")}
        run = [sys.executable, "-c", code]
        return subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_compiled_code_is_kept_until_a_constant_of_another_file_changes(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "planner")
    assert copies.printed(_PRICE) == "605.0 0"
    assert copies.printed(_PRICE) == "605.0 1"
    copies.change("planner/limits.py", "ON_TIME_S: Final = 1e-6", "ON_TIME_S: Final = 10.0")
    assert copies.printed(_PRICE) == "0.0 0"


def test_the_batch_policy_of_annealing_keeps_its_code_until_a_file_that_it_uses_changes(
    tmp_path: Path,
) -> None:
    copies = Copies(tmp_path, "planner", "agents")
    assert copies.printed(_ANNEALER) == "0"
    assert copies.printed(_ANNEALER) == "1"
    copies.change("planner/compiling/refcounts.py", "that took 40 % of the search", "that took time")
    assert copies.printed(_ANNEALER) == "0"


def test_code_is_compiled_without_a_cache_where_there_is_no_folder_for_it() -> None:
    scope: dict[str, Any] = {}
    exec("def doubled(n):\n    return 2 * n", scope)  # in no file, so that numba has no folder either
    doubled = compiled()(scope["doubled"])
    assert doubled(21) == 42
