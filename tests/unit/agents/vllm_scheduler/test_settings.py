"""Settings of the scheduler, its links, versions and counters."""

import subprocess
import sys
from pathlib import Path

import pytest

from qlm.agents.engines.scheduler_path import scheduler_path
from qlm.agents.vllm_scheduler.counters import LOG_EVERY_S, Counters
from qlm.agents.vllm_scheduler.settings import SchedulerSettings
from qlm.agents.vllm_scheduler.version import UnsupportedVllmError, check_version
from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_policies import ByRank


def test_settings_survive_the_environment() -> None:
    iteration = IterationTime(host_ms=1.0, linear_ms=((1, 5.0), (2048, 40.0)), kv_ms=0.002, kv_mixed_ms=0.003)
    settings = SchedulerSettings("fcfs", iteration, 25e9)
    assert SchedulerSettings.parse(settings.text()) == settings
    assert SchedulerSettings.parse("") == SchedulerSettings()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"policy": "fcfs"}', '{"iteration": {"linear_ms": 3}}', '{"iteration": {}}']
)
def test_malformed_settings_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="QLM_VLLM_SCHEDULER"):
        SchedulerSettings.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"batching": 5}', "QLM_VLLM_SCHEDULER: batching is 5; expected the name of a batch policy"),
        ('{"batching": null}', "QLM_VLLM_SCHEDULER: batching is None; expected the name of a batch policy"),
        ('{"link_bytes_per_s": "16e9"}', "link_bytes_per_s is '16e9'; expected a number above 0"),
        ('{"link_bytes_per_s": true}', "link_bytes_per_s is True; expected a number above 0"),
        ('{"link_bytes_per_s": 0}', "link_bytes_per_s is 0; expected a number above 0"),
        ('{"link_bytes_per_s": NaN}', "link_bytes_per_s is nan; expected a number above 0"),
    ],
)
def test_a_setting_of_the_wrong_type_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidValueError) as raised:
        SchedulerSettings.parse(text)
    assert said in str(raised.value)


@pytest.mark.parametrize("batching", [":Policy", "..x:Policy", "json:dumps", "os:getcwd"])
def test_what_is_no_class_of_policies_is_refused(batching: str) -> None:
    with pytest.raises(InvalidValueError, match="batching is"):
        SchedulerSettings(batching).policy()


def test_policies_are_found_by_name_or_by_class() -> None:
    assert isinstance(SchedulerSettings("support.batch_policies:ByRank").policy(), ByRank)
    for name in ("no-such-policy", "no_such_module:Policy", "support.batch_policies:NoSuchClass"):
        with pytest.raises(InvalidValueError, match="batching"):
            SchedulerSettings(name).policy()


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7+cpu", "0.32.1rc1"])
def test_the_supported_version_is_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.3.2", "1.32.0"])
def test_other_versions_are_refused_in_one_line(version: str) -> None:
    with pytest.raises(UnsupportedVllmError) as raised:
        check_version(version)
    assert version in str(raised.value)
    assert "0.32.x only" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_scheduler_imports_nothing_but_numpy_from_its_links(tmp_path: Path) -> None:
    entry = scheduler_path(tmp_path)
    assert scheduler_path(tmp_path) == entry, "made once"
    program = (
        "import sys\n"
        "import qlm.agents.vllm_scheduler.host\n"
        "foreign = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(name for name in foreign if not name.startswith('_')))\n"
        "print(qlm.agents.vllm_scheduler.host.__file__)"
    )
    # Without the site packages' .pth files, which would add the whole of QLM.
    numpy_folder = Path(str(sys.modules["numpy"].__file__)).parents[1] if "numpy" in sys.modules else None
    assert numpy_folder is not None
    ran = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": f"{entry}:{numpy_folder}"},
        capture_output=True,
        text=True,
        check=True,
    )
    names, file = ran.stdout.splitlines()
    assert names == "['cython_runtime', 'numpy', 'qlm']", "the first one belongs to numpy"
    assert file.startswith(str(entry))


def test_counters_are_logged_once_a_minute_and_start_anew() -> None:
    counters = Counters()
    assert counters.text() == ""
    assert not counters.due(5.0)
    counters.step(0.000_050)
    counters.preemptions += 2
    assert not counters.due(5.0 + LOG_EVERY_S - 1)
    assert counters.due(5.0 + LOG_EVERY_S)
    assert counters.text() == (
        "QLM's scheduler: 1 steps, 50 us each; 0 decisions, 0 us each; 2 preemptions, 0 holds"
    )
    assert counters.text() == ""
