import pytest

from benchmarks.simulation import FOLDER, PARTS, cut, part_of, shares
from qlm.cli.scenario.file import load_scenario
from qlm.simulator.seeds import Seeds

ENGINE = ("/home/x/simulator/qlm/simulator/engine/batching.py", 1, "plan")
STORE = ("/home/x/store/qlm/store/state.py", 1, "_note")
VALUE = ("/home/x/domain/qlm/domain/lease.py", 1, "order")
BUILTIN = ("~", 0, "<built-in method builtins.len>")


@pytest.mark.parametrize(
    ("file", "part"),
    [
        (ENGINE[0], "engine model"),
        ("/home/x/simulator/qlm/simulator/cluster/event_queue.py", "world and event queue"),
        ("/home/x/planner/qlm/planner/baselines/fcfs.py", "controller decisions"),
        (VALUE[0], None),
        (BUILTIN[0], None),
    ],
)
def test_a_file_belongs_to_the_part_of_its_folder(file: str, part: str | None) -> None:
    assert part_of(file) == part
    assert part is None or part in PARTS


def test_what_belongs_to_no_part_counts_for_its_callers_by_what_each_caused() -> None:
    stats = {
        ENGINE: (1, 1, 2.0, 6.0, {}),
        STORE: (1, 1, 1.0, 3.0, {}),
        VALUE: (4, 4, 2.0, 6.0, {ENGINE: (3, 3, 1.5, 4.5), STORE: (1, 1, 0.5, 1.5)}),
        BUILTIN: (4, 4, 4.0, 4.0, {VALUE: (4, 4, 4.0, 4.0)}),
    }
    # The value's own 2 s and the 4 s of the builtin that only it calls: three quarters are the engine's.
    expected = {"engine model": 6.5 / 9, "store": 2.5 / 9, "other": 0.0}
    assert shares(stats) == pytest.approx(expected)


def test_a_cut_scenario_has_the_first_requests_of_the_whole_one() -> None:
    whole = load_scenario(FOLDER / "fleet-100.yaml")
    few = cut(whole, 50).make_workload(Seeds(1))
    assert len(few) == 50
    assert (few.arrival_ns == whole.make_workload(Seeds(1)).arrival_ns[:50]).all()
