"""Statistics and runs of the benchmark of drawn scenarios, on results made by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.motion.cells import Cell, cells, mean_interval, paired_interval
from benchmarks.motion.facts import Facts
from benchmarks.motion.report import by_kind, goals, plain
from benchmarks.motion.runs import Run, append, missing, packed_bits, read

REQUESTS = 200


def a_run(
    arm: str, share: int, *, scenario: str = "s", load: float = 0.8, seed: int = 1, **others: Any
) -> Run:
    """Make a run in which `share` of any ten successive requests meet their objective."""
    bits = np.arange(REQUESTS) % 10 < share
    values: dict[str, Any] = {
        "digest": "d",
        "requests": REQUESTS,
        "met": packed_bits(bits),
        "attainment": float(bits.mean()),
        "served_rps": 1.0,
        "late_p99_s": 10.0,
        "evictions": 0,
        "swaps": 0,
        "swap_s": 0.0,
        "moves": 0,
        "unfinished": 0,
        "simulated_s": 100.0,
        "processor_s": 1.0,
    }
    return Run(scenario=scenario, arm=arm, load=load, seed=seed, **{**values, **others})


def facts(models: int, instances: int, **properties: bool) -> Facts:
    return Facts(models=models, instances=instances, kinds=1, properties=properties)


def two_cells() -> list[Cell]:
    """One cell 10 points above FCFS and 20 above EDF with rules, and one 10 points below FCFS."""
    runs = []
    for seed in (1, 2):
        for arm, met in (("qlm", 9), ("fcfs", 8), ("edf+rules", 7)):
            runs.append(a_run(arm, met, scenario="a", load=1.2, seed=seed, served_rps=2.0))
        for arm, met in (("qlm", 6), ("fcfs", 7), ("edf+rules", 5)):
            late_s = 30.0 if arm == "qlm" else 10.0
            runs.append(a_run(arm, met, scenario="b", load=0.3, seed=seed, late_p99_s=late_s))
    return cells(runs, "qlm", ["fcfs", "edf+rules"])


def test_a_cell_compares_the_subject_with_its_best_rival() -> None:
    gained, behind = two_cells()
    assert [(cell.scenario, cell.best) for cell in (gained, behind)] == [("a", "fcfs"), ("b", "fcfs")]
    assert [gained.difference, behind.difference] == pytest.approx([10.0, -10.0])
    assert gained.spread == 0.0


def test_equal_blocks_have_an_interval_of_one_point() -> None:
    gained, behind = two_cells()
    assert gained.interval == pytest.approx((10.0, 10.0))
    assert behind.interval == pytest.approx((-10.0, -10.0))


def test_an_interval_widens_with_blocks_and_seeds_that_differ() -> None:
    early = np.arange(REQUESTS) < REQUESTS // 2
    ours = [a_run("qlm", 0, met=packed_bits(early), seed=seed) for seed in (1, 2)]
    low, high = paired_interval(ours, [a_run("fcfs", 0, seed=seed) for seed in (1, 2)])
    assert low < 45 < 55 < high
    one, other = a_run("qlm", 10, seed=1), a_run("qlm", 0, seed=2)
    rivals = [a_run("fcfs", 5, seed=1), a_run("fcfs", 5, seed=2)]
    assert paired_interval([one, other], rivals) == pytest.approx((-50.0, 50.0))


def test_runs_of_other_requests_are_not_compared() -> None:
    with pytest.raises(ValueError, match="other requests"):
        paired_interval([a_run("qlm", 5)], [a_run("fcfs", 5, digest="other")])


def test_a_cell_without_a_rival_is_left_out_and_extra_seeds_do_not_count() -> None:
    assert cells([a_run("qlm", 5)], "qlm", ["fcfs"]) == []
    runs = [a_run("qlm", 5), a_run("fcfs", 5), a_run("fcfs", 0, seed=2)]
    assert cells(runs, "qlm", ["fcfs"])[0].attainment["fcfs"] == pytest.approx(50.0)


def test_the_goals_count_cells_gains_and_ratios() -> None:
    of = {"a": facts(3, 2, bursts=True), "b": facts(1, 1, bursts=False)}
    found = goals(two_cells(), "qlm", of)
    assert found["cells"] == 2
    assert found["near_or_better_share"] == 0.5
    assert found["wholly_behind"] == ["b 0.3"]
    assert found["gain_over_edf_rules"] == pytest.approx(20.0)
    assert found["gain_cells"] == 1
    assert found["late_p99_over_fcfs_most"] == pytest.approx(3.0)
    assert found["late_p99_within_twice_share"] == 0.0
    assert found["served_over_fcfs_mean"] == pytest.approx(1.0)
    assert found["spread_over_3"] == 0


def test_models_that_have_an_instance_each_do_not_count_for_the_gain() -> None:
    of = {"a": facts(2, 2), "b": facts(1, 1)}
    found = goals(two_cells(), "qlm", of)
    assert found["gain_over_edf_rules"] is None
    assert found["gain_cells"] == 0


def test_kinds_of_scenarios_have_means_of_their_own() -> None:
    of = {"a": facts(3, 2, bursts=True), "b": facts(1, 1, bursts=False)}
    kinds = by_kind(two_cells(), of)
    assert kinds["bursts"]["difference"] == pytest.approx(10.0)
    assert kinds["load 0.3"]["near_or_better_share"] == 0.0
    assert plain(two_cells(), "qlm", of)["cells"][0]["properties"] == ["bursts"]


def test_an_interval_of_a_mean_holds_the_mean() -> None:
    low, high = mean_interval([1.0, 2.0, 3.0, 10.0])
    assert low < 4.0 < high


def test_a_resumed_benchmark_lacks_only_what_is_not_in_the_file(tmp_path: Path) -> None:
    path, first, second = tmp_path / "runs.jsonl", a_run("qlm", 5), a_run("fcfs", 6)
    assert read(path) == {}
    append(path, first)
    append(path, second)
    text = path.read_text("utf-8")
    path.write_text(text[:-10], "utf-8")  # interrupted in the second line
    known = read(path)
    assert known == {first.key: first}
    assert missing([first.key, second.key], known) == [second.key]
    append(path, second)
    assert list(read(path).values()) == [first, second]


def test_a_run_of_another_scenario_file_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append(path, a_run("qlm", 5, digest="old"))
    assert missing([a_run("qlm", 5).key], read(path)) == [a_run("qlm", 5).key]


def test_bits_keep_their_order() -> None:
    bits = np.array([True, False, True, True, False, False, False, False, True])
    one = a_run("qlm", 0, requests=len(bits), met=packed_bits(bits))
    assert one.bits.tolist() == bits.tolist()
