from pathlib import Path

from benchmarks.fidelity_client import Answer
from benchmarks.fidelity_log import replayed, write_log
from benchmarks.fidelity_workload import Planned
from qlm.cli.profiling.request_log import read_request_log
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.file import profile_text


def test_the_log_of_a_run_is_read_and_replayed_by_load(tmp_path: Path) -> None:
    planned = [Planned(0.0, 100, 3), Planned(0.5, 50, 1)]
    answers = [Answer(0.0, 0.001, (0.1, 0.2, 0.3)), Answer(0.5, 0.501, (0.75,))]
    path = tmp_path / "log.csv"
    write_log(path, {"60 % load": (planned, answers), "saturated": (planned[:1], answers[:1])})
    levels = dict(read_request_log(path).levels())
    assert levels["60 % load"].ttft_s.tolist() == [0.1, 0.25]
    assert levels["60 % load"].e2e_s.tolist() == [0.3, 0.25]
    assert len(levels["saturated"]) == 1
    found = replayed(path, profile_text(builtin_profiles()[0]))
    assert [one.level for one in found] == ["60 % load", "saturated"]
