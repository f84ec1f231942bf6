"""Rounds of the fidelity benchmark: kept ones, and what is reported of them."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.fidelity import keep, kept, report
from benchmarks.fidelity_client import Answer
from benchmarks.fidelity_report import Replay, Round
from benchmarks.fidelity_rounds import LOADS
from benchmarks.fidelity_run import Cores, Run
from benchmarks.fidelity_workload import Planned
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.file import profile_text

IDLE = Cores(client=0.0, engine=0.0, others=0.0)
PLANNED = tuple(Planned(0.1 * n, 50, 3) for n in range(40))


def options(out: Path, **changes: object) -> argparse.Namespace:
    plain = {"out": out, "requests": 40, "whole": False, "quick": False, "profile": None, "resume": True}
    return argparse.Namespace(**(plain | changes))


def ran(factor: float) -> Run:
    times = [tuple(one.at_s + factor * s for s in (0.1, 0.2, 0.3)) for one in PLANNED]
    return Run(tuple(Answer(one.at_s, one.at_s, of) for one, of in zip(PLANNED, times, strict=True)), IDLE)


def a_round() -> Round:
    runs = ran(1.0), ran(1.1), ran(1.21), ran(1.1)
    replays = tuple(Replay(load, PLANNED, runs) for load in LOADS)
    return Round(7, profile_text(builtin_profiles()[0]), (IDLE,), 10.0, replays)


def test_a_finished_round_is_kept_for_the_same_procedure_only(tmp_path: Path) -> None:
    asked = options(tmp_path / "new" / "fidelity.json")
    assert kept(asked, 7) is None
    keep(asked, a_round())
    assert kept(asked, 7) == a_round()
    assert kept(asked, 8) is None
    for change in ({"resume": False}, {"requests": 300}, {"whole": True}):
        assert kept(options(asked.out, **change), 7) is None


def test_the_report_compares_every_real_run_and_stands_in_files_beside_each_other(tmp_path: Path) -> None:
    result, text = report([a_round()], options(tmp_path / "fidelity.json"), {"machine": "some"})
    assert (tmp_path / "fidelity.txt").read_text() == text
    assert json.loads((tmp_path / "fidelity.json").read_text())["verdicts"] == result["verdicts"]
    latency = result["verdicts"][0]
    assert latency["value"] == pytest.approx(0.1 / 1.1, rel=0.01)  # the median of +10 %, 0 and -9.1 %
    assert latency["own"] == pytest.approx(0.1, rel=0.01)
    assert "each 10.0% 0.0% 9.1% (10.0% 21.0% 10.0%)" in text
