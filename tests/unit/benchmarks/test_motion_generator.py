"""Drawn scenarios: determinism, validity, bounds, and the range of what is drawn."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.motion.facts import facts_of
from benchmarks.motion.generator.__main__ import main
from benchmarks.motion.generator.document import file_text
from benchmarks.motion.generator.draft import Draft, draw_draft
from benchmarks.motion.generator.scenario import drawn_file
from benchmarks.motion.generator.sizing import expected_rps, fitting_lengths, size_at
from benchmarks.motion.static_placement import best_split, one_home
from qlm.cli.scenario.workload import draw_scenario
from qlm.simulator.seeds import Seeds

ROOT = Path(__file__).resolve().parents[3]
SEEDS = range(1, 25)
SMALL = 16
"""Seed of a scenario that is measured quickly: two models on two instances, about 230 requests."""

REQUESTS_MAX = 2500


def expected_text(draft: Draft) -> str:
    """Write the file of a draft at its expected rate, which takes no simulation."""
    lengths = fitting_lengths(draft)
    return file_text(draft, size_at(draft, expected_rps(draft, lengths), lengths), [])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, found = tmp_path_factory.mktemp("drawn"), []
    for seed in SEEDS:
        found.append(folder / f"drawn-{seed:05d}.yaml")
        found[-1].write_text(expected_text(draw_draft(seed)), "utf-8")
    return found


def test_drawn_scenarios_are_valid_and_have_at_most_2500_requests(files: list[Path]) -> None:
    for path in files:
        scenario = draw_scenario(path, 1, load=1.5).scenario
        assert 1 <= len(scenario.models) <= 100, path
        assert 1 <= len(scenario.instances) <= 16, path
        assert 1 <= len(scenario.make_workload(Seeds(1))) <= REQUESTS_MAX, path


def test_the_rate_at_load_1_is_the_capacity_in_the_file(files: list[Path]) -> None:
    ratios = []
    for path in files:
        scenario = draw_scenario(path, 1).scenario
        workload = scenario.make_workload(Seeds(1))
        assert scenario.capacity_rps is not None
        ratios.append(len(workload) / (float(workload.arrival_ns[-1]) / 1e9) / scenario.capacity_rps)
    assert float(np.median(ratios)) == pytest.approx(1.0, abs=0.15)


def test_scenarios_of_all_kinds_are_drawn(files: list[Path]) -> None:
    found = [facts_of(path) for path in files]
    for name in found[0].properties:
        assert any(facts.properties[name] for facts in found), name
    assert any(2 <= facts.models <= 8 and 2 <= facts.instances <= 4 for facts in found)


def test_extremes_of_models_and_instances_are_drawn() -> None:
    fleets = [draw_draft(seed).fleet for seed in range(150)]
    assert min(len(fleet.models) for fleet in fleets) == 1
    assert max(len(fleet.models) for fleet in fleets) > 60
    assert min(len(fleet.instances) for fleet in fleets) == 1
    assert max(len(fleet.instances) for fleet in fleets) == 16


def test_each_model_has_an_instance_and_each_instance_a_model() -> None:
    for seed in range(150):
        fleet = draw_draft(seed).fleet
        assert {id for each in fleet.instances for id in each.models} == set(fleet.models)
        assert all(each.models for each in fleet.instances)


def test_twins_have_equal_profiles_lengths_mixes_and_shares() -> None:
    twinned = [draft for draft in map(draw_draft, range(60)) if draft.fleet.twins]
    assert twinned
    for draft in twinned:
        ids = list(draft.fleet.models)
        at = [number for number, id in enumerate(ids) if id in draft.fleet.twins]
        assert len({draft.fleet.models[ids[number]] for number in at}) == 1
        assert len({draft.demands[number] for number in at}) == 1
        assert len({tuple(draft.mixes[ids[number]].items()) for number in at}) == 1
        assert all(len({phase.shares[number] for number in at}) == 1 for phase in draft.phases)


def test_equal_seeds_give_equal_bytes_in_any_process(tmp_path: Path) -> None:
    here = drawn_file(SMALL)
    command = [sys.executable, "-m", "benchmarks.motion.generator", str(SMALL), "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    subprocess.run(command, check=True, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    path = tmp_path / f"drawn-{SMALL:05d}.yaml"
    assert path.read_bytes() == here.encode()
    capacity_rps = draw_scenario(path, 1).scenario.capacity_rps
    assert f"# Load 1.0 is {capacity_rps:.4g} requests per second" in here


def test_the_best_split_evens_out_the_work() -> None:
    # The first model runs anywhere, the second on the second instance only, where it takes 3 s.
    work = np.array([[2.0, 2.0], [np.inf, 3.0]])
    load, shares = best_split(work)
    assert load == pytest.approx(3.0)
    assert shares[1].tolist() == pytest.approx([0.0, 1.0])
    assert shares[0].tolist() == pytest.approx([1.0, 0.0])
    load, shares = best_split(np.array([[2.0, 2.0], [np.inf, 1.0]]))
    assert load == pytest.approx(1.5)
    assert shares[0].tolist() == pytest.approx([0.75, 0.25])


def test_with_one_home_a_model_goes_where_it_ends_soonest() -> None:
    work = np.array([[4.0, 8.0], [3.0, 3.0], [2.0, 2.0]])
    assert one_home(work).tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_simulation_takes_is_refused_in_one_line(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--", str(seed)])
    assert ended.value.code == 2
    assert f"{seed} is no seed; expected 0 to {2**63 - 1}" in capsys.readouterr().err
