"""Planning comes to the plan generator wherever it is installed, or says why not."""

import os
import resource
from pathlib import Path

import pytest

from qlm.cli.runtime.compiled_code import FOLDER, FOLDER_VARIABLE, compiled_code_folder
from qlm.cli.runtime.plan_generator import PlanGenerator
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.rct_estimator.normal import Normal


@pytest.fixture
def problem() -> Problem:
    """One group for one instance."""
    model = ModelId("m")
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=1.0)
    time = GroupTime(service=Normal(1.0, 0.1), tail=Normal(1.0, 0.1))
    return Problem(
        now_s=0.0,
        kinds={"a10": Kind(host_memory_bytes=1, models={model: cost})},
        instances=(Instance(id=InstanceId("i"), kind="a10"),),
        groups=(PlannedGroup(id=GroupId("g"), model=model, requests=5, deadline_s=9.0, time={"a10": time}),),
    )


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    """What nobody can write into, not even root: it is a file."""
    path = tmp_path / "file"
    path.touch()
    return path


def test_compiled_code_lies_beside_its_source_if_that_can_be_written(tmp_path: Path) -> None:
    package = tmp_path / "package"
    assert compiled_code_folder(tmp_path / "data", {}, package) is None
    assert not (tmp_path / "data").exists(), "nothing is made that is not needed"
    assert not list((package / "__pycache__").iterdir())


def test_in_a_read_only_installation_it_lies_under_data_dir(
    tmp_path: Path, read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert compiled_code_folder(Path("data"), {}, read_only) == tmp_path / "data" / FOLDER
    assert (tmp_path / "data" / FOLDER).is_dir()
    assert compiled_code_folder(Path("data"), {FOLDER_VARIABLE: "/elsewhere"}, read_only) is None


def test_if_nothing_can_be_written_it_lies_in_a_temporary_folder(
    read_only: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = compiled_code_folder(read_only, {}, read_only)
    assert folder is not None and folder.is_dir()
    folder.rmdir()
    assert f"neither {read_only} nor {read_only / FOLDER} can be written" in caplog.text


async def test_modules_of_the_current_folder_are_not_taken_for_the_installed_ones(
    tmp_path: Path, problem: Problem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "numba.py").write_text("raise SystemExit('this is not numba')")
    monkeypatch.chdir(tmp_path)
    generator = PlanGenerator(tmp_path)
    assert generator(problem).method == "edf"
    await generator.get_ready()
    assert generator(problem).method == "fast", caplog.text


@pytest.mark.parametrize("chosen", [True, False], ids=["folder chosen", "folder to be looked at"])
async def test_without_files_to_be_had_planning_stays_as_it_is_and_says_so(
    chosen: bool,
    tmp_path: Path,
    problem: Problem,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path) if chosen else "")
    generator = PlanGenerator(tmp_path / "data")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        await generator.get_ready()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (said,) = caplog.messages
    assert said.startswith("planning stays with earliest deadline first: [Errno 24] Too many open files")
    assert generator(problem).method == "edf"
    assert not (tmp_path / "data").exists()
