"""Runs of many seeds: which faults they draw, and how they go on after an interruption."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from click import ClickException
from click.testing import CliRunner

from simulation.__main__ import main
from simulation.campaign import Campaign, summaries
from simulation.faults.plan import KINDS, draw_faults
from simulation.records import SeedFile
from simulation.trial import run_trial

FEW = ("gateway killed", "clock jump")


def run(path: Path, seeds: int) -> tuple[list[int], SeedFile]:
    """Run the first seeds that a file lacks; return those, and the file."""
    with SeedFile.open(path, FEW) as file:
        ran = [summary.seed for summary in summaries(Campaign(range(seeds), FEW, 1), file)]
    return ran, file


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "seeds"
    assert run(path, 2)[0] == [0, 1]
    path.write_bytes(path.read_bytes()[:-20])  # killed while it wrote the last line
    assert run(path, 3)[0] == [1, 2]
    ran, file = run(path, 3)
    assert ran == []
    assert (file.total.seeds, file.total.requests, file.total.failed) == (3, 600, 0)
    assert set(file.total.kinds) <= set(FEW)


def test_a_file_of_other_faults_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seeds"
    with SeedFile.open(path, None):
        pass
    with pytest.raises(ClickException, match="other kinds of faults"):
        SeedFile.open(path, FEW)


def test_the_command_reports_seeds_per_kind_of_fault(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--seeds", "1", "--processes", "1", "--kinds", "clock*"])
    assert result.exit_code == 0, result.output
    assert ["clock", "jump", "1"] in [line.split()[:3] for line in result.output.splitlines()]
    assert CliRunner().invoke(main, ["--kinds", "no such fault"]).exit_code == 2


def test_every_kind_of_fault_is_drawn() -> None:
    drawn = Counter(fault.kind for seed in range(500) for fault in draw_faults(Random(seed)))
    assert set(drawn) == set(KINDS)
    assert min(drawn.values()) > 50, drawn


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_happens_and_ends(kind: str) -> None:
    trial = run_trial(3, kinds=(kind,), requests=30)
    assert not trial.violations, trial.violations[:5]
    assert set(trial.faults) == {kind}
    names = Counter(type(event).__name__ for event in trial.events)
    assert names["Fault"] == names["FaultOver"] == len(trial.faults)
