"""Compiled code simulates what the interpreter simulates."""

from pathlib import Path

import pytest

from support.compiled import COMPILED, COMPILER, INTERPRETED, requests_csv

QUICKSTART = Path(__file__).parents[3] / "examples" / "scenarios" / "quickstart.yaml"


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize("policy", ["qlm", "fcfs"])
def test_compiled_code_gives_the_same_bytes(policy: str, tmp_path: Path) -> None:
    interpreted = requests_csv(INTERPRETED, QUICKSTART, policy, tmp_path / "interpreted")
    assert requests_csv(COMPILED, QUICKSTART, policy, tmp_path / "compiled") == interpreted
