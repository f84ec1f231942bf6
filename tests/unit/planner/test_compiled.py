"""Compiled code is kept, but never longer than the sources that it was made of."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qlm.planner.limits

pytestmark = pytest.mark.timeout(400)

_PRICE = """
from qlm.planner.fast.penalty import summed_penalty

print(summed_penalty(1.0, 5.0, 0.0, 0.0, 0.0, 0.0, 600.0, 0.0), sum(summed_penalty.stats.cache_hits.values()))
"""
"""Prints what a request costs that is certainly 5 s late, and whether its code was kept."""


def test_compiled_code_is_kept_until_a_constant_of_another_file_changes(tmp_path: Path) -> None:
    limits = Path(qlm.planner.limits.__file__)
    copied = shutil.copytree(limits.parent, tmp_path / "qlm/planner", ignore=shutil.ignore_patterns("__py*"))
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}

    def price() -> str:
        run = [sys.executable, "-c", _PRICE]
        return subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    assert price() == "605.0 0"
    assert price() == "605.0 1"
    text = limits.read_text("utf-8").replace("ON_TIME_S: Final = 1e-6", "ON_TIME_S: Final = 10.0")
    (copied / limits.name).write_text(text, "utf-8")
    assert price() == "0.0 0"
