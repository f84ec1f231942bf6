"""Scenario files: what they become, and the one sentence that names what is wrong with one."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from qlm.cli.config.errors import ConfigError
from qlm.cli.scenario.file import load_scenario
from qlm.cli.scenario.yaml import read_scenario_file
from qlm.domain.ids import ModelId
from qlm.domain.slo import BatchSlo, DeadlineSlo, OnMiss, ReadingSlo
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.file import profile_text
from qlm.simulator.engine.host_cache import KvOffloading
from qlm.simulator.scenario import (
    BrokerOutage,
    Fault,
    KillEngine,
    KillInstance,
    PauseController,
    SlowInstance,
    StoreOutage,
)
from qlm.simulator.seeds import Seeds
from qlm.simulator.workload.maker import WorkloadMaker

ROOT = Path(__file__).resolve().parents[3]

CONSTANT = {"prompt_tokens": {"constant": 100}, "output_tokens": {"constant": 10}}
SOUND: dict[str, Any] = {
    "models": [{"id": "mistral-7b"}, {"id": "vicuna-13b"}],
    "instances": [
        {"id": "a100", "count": 2, "accelerator": "A100", "models": ["mistral-7b", "vicuna-13b"]},
        {"id": "a10-0", "accelerator": "A10", "models": ["mistral-7b"], "host_memory_gib": 32},
    ],
    "slo_classes": {"chat": {"ttft_ms": 1000, "tokens_per_s": 5, "priority": -1}, "batch": {}},
    "traces": {"log": {"path": "log.csv", "format": "csv"}},
    "workload": [
        {
            "arrivals": {"poisson": {"rate_rps": 10, "requests": 100}},
            "lengths": CONSTANT,
            "model": "mistral-7b",
            "slo": "chat",
        },
        {
            "name": "replay",
            "arrivals": {"trace": "log"},
            "lengths": {"trace": "log"},
            "models": {"m": "vicuna-13b", "other": None},
            "slo": {"shares": {"chat": 0.5, "batch": 0.5}},
        },
    ],
}
LOG = "arrival_s,model,tenant,input_tokens,output_tokens\n0,m,ann,5,6\n1,other,bob,7,8\n2,m,bob,9,10\n"


def changed(key: str, value: Any) -> dict[str, Any]:
    """The sound scenario with one key set; `workload.0.slo` goes into the first stream."""
    raw = copy.deepcopy(SOUND)
    *steps, last = key.split(".")
    inner: Any = raw
    for step in steps:
        inner = inner[int(step)] if isinstance(inner, list) else inner.setdefault(step, {})
    if isinstance(inner, list):
        inner[int(last)] = value
    else:
        inner[last] = value
    return raw


def written(folder: Path, raw: dict[str, Any], log: str = LOG) -> Path:
    (folder / "log.csv").write_text(log)
    file = folder / "scenario.yaml"
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    return file


def test_a_sound_file_becomes_a_scenario(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, SOUND))
    assert scenario.name == "scenario"
    assert [(i.id, i.kind) for i in scenario.instances] == [
        ("a100-0", "A100"),
        ("a100-1", "A100"),
        ("a10-0", "A10"),
    ]
    assert [(m.id, m.context_tokens) for m in scenario.models] == [
        ("mistral-7b", 32_768),
        ("vicuna-13b", 4096),
    ]
    chat, batch = scenario.slo_classes
    assert (chat.slo, chat.priority) == (ReadingSlo(ttft_ms=1000, tokens_per_s=5), -1)
    assert batch.slo == BatchSlo()
    assert scenario.fleet.kinds["A10"].host_memory_bytes == 32 * 1024**3
    assert ("vicuna-13b", "A10") not in scenario.fleet.profiles
    workload = scenario.make_workload(Seeds(1))
    assert len(workload) == 102
    assert workload.tenants == ("ann", "bob", "default")
    assert np.bincount(workload.model).tolist() == [100, 2]


def test_load_multiplies_all_rates(tmp_path: Path) -> None:
    file = written(tmp_path, SOUND)
    once, twice = (load_scenario(file, load=load).make_workload(Seeds(1)) for load in (1.0, 2.0))
    vicuna = [w.arrival_ns[w.model == 1].tolist() for w in (once, twice)]
    assert vicuna == [[0, 2 * 10**9], [0, 10**9]]
    assert once.arrival_ns[-1] == pytest.approx(2 * twice.arrival_ns[-1], rel=1e-6)


def test_a_history_is_drawn_like_the_workload_but_by_numbers_of_its_own(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, SOUND)).past is None
    streams = SOUND["workload"]
    file = written(tmp_path, SOUND | {"history": {"age_s": 60, "workload": streams}})
    scenario = load_scenario(file, load=2.0)
    assert scenario.past is not None and scenario.past.age_s == 60
    before, now = scenario.past.make_workload(Seeds(1)), scenario.make_workload(Seeds(1))
    assert len(before) == len(now)
    assert before.arrival_ns.tolist() != now.arrival_ns.tolist()
    wrong = copy.deepcopy(streams)
    wrong[0]["slo"] = "unknown"
    with pytest.raises(ConfigError, match=r"history\.workload\..*slo has 'unknown'; expected one of"):
        load_scenario(written(tmp_path, SOUND | {"history": {"workload": wrong}}))


@pytest.mark.parametrize("load", [0, -1, float("nan"), float("inf")])
def test_an_impossible_load_is_refused(tmp_path: Path, load: float) -> None:
    with pytest.raises(ConfigError, match=r"load is .*; expected a number above 0"):
        load_scenario(written(tmp_path, SOUND), load=load)


def test_what_was_cut_can_be_shown(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, SOUND))
    assert isinstance(scenario.make_workload, WorkloadMaker)
    _, (first, replay) = scenario.make_workload.draw(Seeds(1))
    assert (first.name, first.requests) == ("0", 100)
    assert (replay.name, replay.requests, replay.left_out) == ("replay", 2, 1)


def test_all_settings_arrive(tmp_path: Path) -> None:
    raw = copy.deepcopy(SOUND) | {
        "name": "all",
        "network": {"store_ms": 3, "broker_ms": 4, "notice_ms": 5},
        "controller": {"delta": 2, "group_requests_max": 7, "linger_s": 8, "move_s": 9},
        "limits": {"queue_depth_max": 10, "host_kv_gib": 2, "append_interval_ms": 20, "horizon_s": 60},
    }
    raw["slo_classes"] = {"chat": {"deadline_ms": 5000, "on_miss": "drop"}, "batch": {}}
    scenario = load_scenario(written(tmp_path, raw))
    network = scenario.network
    assert (network.store_s, network.broker_s, network.notice_s) == (0.003, 0.004, 0.005)
    controller = scenario.controller
    assert (controller.delta, controller.group_requests_max) == (2, 7)
    assert (controller.linger_s, controller.move_s) == (8, 9)
    assert (scenario.queue_depth_max, scenario.host_kv_bytes) == (10, 2 * 1024**3)
    assert (scenario.append_interval_s, scenario.horizon_s) == (0.02, 60)
    assert scenario.slo_classes[0].slo == DeadlineSlo(deadline_ms=5000)
    assert scenario.slo_classes[0].on_miss is OnMiss.DROP


@pytest.mark.parametrize("written_through", [True, False])
def test_rules_of_offloading_arrive_in_engines(tmp_path: Path, written_through: bool) -> None:
    limits = {
        "host_kv_gib": 2,
        "host_kv_write_through": written_through,
        "host_kv_overlap": not written_through,
    }
    raw = copy.deepcopy(SOUND) | {"limits": limits}
    raw["instances"] = [each | {"batching": "edf"} for each in raw["instances"]]
    wanted = KvOffloading(writes_through=written_through, overlaps=not written_through)
    assert load_scenario(written(tmp_path, raw)).kv_offloading == wanted


@pytest.mark.parametrize("batching", [{}, {"batching": "edf", "batching_by": "aborts"}])
def test_engines_without_a_batch_policy_write_no_blocks_late(
    tmp_path: Path, batching: dict[str, str]
) -> None:
    raw = copy.deepcopy(SOUND) | {"limits": {"host_kv_gib": 2, "host_kv_write_through": False}}
    raw["instances"] = [each | batching for each in raw["instances"]]
    with pytest.raises(ConfigError, match=r"host_kv_write_through is false; .* has none"):
        load_scenario(written(tmp_path, raw))


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        (
            {"kill_instance": {"at_s": 1, "instance": "a10-0", "down_s": 2}},
            KillInstance(at_s=1, instance="a10-0", down_s=2),  # type: ignore[arg-type]
        ),
        (
            {"kill_engine": {"at_s": 1, "instance": "a100-1"}},
            KillEngine(at_s=1, instance="a100-1"),  # type: ignore[arg-type]
        ),
        (
            {"slow_instance": {"at_s": 1, "instance": "a10-0", "for_s": 2, "factor": 3}},
            SlowInstance(at_s=1, instance="a10-0", for_s=2, factor=3),  # type: ignore[arg-type]
        ),
        ({"pause_controller": {"at_s": 1, "for_s": 2}}, PauseController(at_s=1, for_s=2)),
        ({"store_outage": {"at_s": 1, "for_s": 2}}, StoreOutage(at_s=1, for_s=2)),
        ({"broker_outage": {"at_s": 1, "for_s": 2}}, BrokerOutage(at_s=1, for_s=2)),
    ],
)
def test_faults_arrive(tmp_path: Path, section: dict[str, Any], fault: Fault) -> None:
    assert load_scenario(written(tmp_path, changed("faults", [section]))).faults == (fault,)


def test_errors_of_profiles_multiply_the_times_of_engines_only(tmp_path: Path) -> None:
    errors = [
        {"accelerator": "A100", "iterations": 1.2},
        {"model": "mistral-7b", "iterations": 1.5, "swaps": 0.5},
    ]
    scenario = load_scenario(written(tmp_path, changed("profile_errors", errors)))
    expected = {("mistral-7b", "A100"): 1.8, ("mistral-7b", "A10"): 1.5, ("vicuna-13b", "A100"): 1.2}
    for (model, kind), factor in expected.items():
        known = scenario.fleet.profiles[ModelId(model), kind]
        true = scenario.true_profile(ModelId(model), kind)
        assert true.decode_ms(8, 500) == pytest.approx(factor * known.decode_ms(8, 500))
        swaps = 0.5 if model == "mistral-7b" else 1.0
        assert true.swap_cold_s == pytest.approx(swaps * known.swap_cold_s)
        assert true.unload_s == pytest.approx(swaps * known.unload_s)
    assert load_scenario(written(tmp_path, SOUND)).true_profiles == {}


ARRIVALS = "workload.0.arrivals"
ONE = {"at_s": 1, "for_s": 1}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("models", [], "models is .*at least 1"),
        ("profile_errors", [{"model": "m"}], "profile_errors.0.model has 'm'; expected one of"),
        ("profile_errors", [{"accelerator": "B200"}], "profile_errors.0.accelerator has 'B200'"),
        ("profile_errors", [{"iterations": 0}], "profile_errors.0.iterations"),
        ("capacity_rps", 0, "capacity_rps is 0"),
        (
            "history",
            {"workload": [{**SOUND["workload"][0], "name": "old", "model": "m"}]},
            "history.workload.old.model has 'm'",
        ),
        ("models.1.id", "mistral-7b", "models has 'mistral-7b' twice"),
        ("models.0.context_tokens", 40_000, r"models\.0\.context_tokens is 40000; expected at most 32768"),
        ("models.0.engine", "vllm", r"models\.0\.engine is 'vllm'; expected no key of this name"),
        ("models.1.profile", "gpt-5", "'vicuna-13b' .*has no profile; expected a model of llama"),
        (
            "instances.1.models",
            ["llama-70b"],
            r"instances\.1\.models has 'llama-70b'; expected one of mistral",
        ),
        ("instances.1.models", ["mistral-7b", "mistral-7b"], r"instances\.1\.models has 'mistral-7b' twice"),
        ("instances.1.models", ["vicuna-13b"], "'vicuna-13b' .*on 'A10'.*expected one of .*A10 with gpus 2"),
        ("instances.1.accelerator", "T4", "'mistral-7b' .*on 'T4', which has no profile"),
        ("instances.0.models", ["mistral-7b"], "models has 'vicuna-13b'; expected at least one instance"),
        ("instances.1.id", "a100-1", "instances has 'a100-1' twice"),
        ("instances.0.count", 0, r"instances\.0\.count is 0; expected at least 1"),
        ("slo_classes", {}, "slo_classes is .*at least 1"),
        (
            "slo_classes.chat",
            {"deadline_ms": 1, "ttft_ms": 1},
            r"slo_classes\.chat has .*expected deadline_ms",
        ),
        ("slo_classes.chat.priority", 11, r"priority is 11; expected at most 10"),
        ("slo_classes.chat", {"tpot_ms": 1, "priority": 1}, r"slo_classes\.chat has \['tpot_ms'\]"),
        ("slo_classes.chat", {"deadline_ms": -5}, r"slo_classes\.chat .*deadline_ms is -5"),
        ("slo_classes.chat", {"on_miss": "cry"}, r"slo_classes\.chat\.on_miss is 'cry'"),
        ("workload", [], "workload is .*at least 1"),
        ("workload.0.slo", "gold", r"workload\.0\.slo has 'gold'; expected one of chat, batch"),
        ("workload.0.slo", {"shares": {"chat": 0.4}}, r"workload\.0\.slo shares is .*sum is 1"),
        ("workload.0.slo", {"shares": {"gold": 1}}, r"workload\.0\.slo has 'gold'"),
        ("workload.0.slo", {}, r"workload\.0\.slo has none of .*expected exactly one"),
        ("workload.0.slo", {"by_model": {"vicuna-13b": {"chat": 1}}}, r"by_model has .*models of the stream"),
        (
            "workload.0.slo",
            {"by_prompt": [{"up_to_tokens": 9, "slo_class": "chat"}]},
            "by_prompt .*the last null",
        ),
        (
            "workload.0.slo",
            {"by_column": {"a": "chat"}},
            "by_column is .*slo_class, but no trace is configured",
        ),
        ("workload.0.model", "gpt-2", r"workload\.0\.model has 'gpt-2'; expected one of mistral-7b, vicuna"),
        ("workload.0.models", {"a": "mistral-7b"}, r"workload\.0 has \['model', 'models'\].*exactly one"),
        ("workload.1.models", {"m": "gpt-2"}, r"workload\.replay\.models has 'gpt-2'"),
        (
            "workload.1.models",
            {"m": "vicuna-13b"},
            r"workload\.replay\.models is \['m'\]; expected also 'other'",
        ),
        ("workload.0.name", "replay", "workload names has 'replay' twice"),
        (ARRIVALS, {}, r"workload\.0\.arrivals has none of .*exactly one"),
        (ARRIVALS, {"trace": "log", "ramp": {"from_rps": 1, "to_rps": 2, "duration_s": 3}}, "exactly one"),
        (ARRIVALS, {"trace": "logs"}, r"arrivals\.trace has 'logs'; expected one of log"),
        (ARRIVALS, {"poisson": {"rate_rps": 0, "requests": 1}}, r"poisson\.rate_rps is 0; expected a number"),
        (ARRIVALS, {"poisson": {"rate_rps": 1}}, r"arrivals\.poisson has none of .*exactly one"),
        (
            ARRIVALS,
            {"gamma": {"rate_rps": 1, "cv": -1, "requests": 1}},
            r"gamma\.cv is -1; expected a number",
        ),
        (
            ARRIVALS,
            {"bursts": {"count": 1}, "time_scale": 2},
            "time_scale with bursts; expected it with trace",
        ),
        (ARRIVALS, {"burst": {"count": 1}}, r"arrivals\.burst is .*no key of this name"),
        (
            "workload.0.lengths",
            {"trace": "log", **CONSTANT},
            r"lengths has .*expected trace, or prompt_tokens",
        ),
        (
            "workload.0.lengths.prompt_tokens",
            {"constant": 0},
            r"prompt_tokens\.constant is 0; expected at least",
        ),
        (
            "workload.0.lengths.prompt_tokens",
            {"lognormal": {"mean": 5, "median": 5, "sigma": 1}},
            r"prompt_tokens\.lognormal has \['median', 'mean'\].*exactly one",
        ),
        (
            "workload.0.lengths.prompt_tokens",
            {"uniform": {"min": 5, "max": 4}},
            "min 5 and max 4; expected min",
        ),
        ("workload.0.max_tokens", {"fixed": 1, "exact": True}, "max_tokens has .*exactly one"),
        ("traces.log.format", "parquet", r"traces\.log\.format is 'parquet'"),
        ("traces.log.columns", {"when": "at"}, r"traces\.log\.columns\.when"),
        (
            "traces.log.columns",
            {"arrival_s": "at"},
            r"traces\.log: .*log\.csv:1: header is .*also the columns at",
        ),
        ("traces.log.format", "azure", r"traces\.log: .*log\.csv:1: header is .*TIMESTAMP"),
        ("traces.log.format", "sharegpt", "has the tokenizer None for the format sharegpt; expected one"),
        ("traces.log.path", "none.csv", r"traces\.log: .*none\.csv is 'no such file or directory'"),
        ("traces.log.path", 5, r"traces\.log\.path is 5; expected a path"),
        ("traces.log.path", "${NOWHERE_TO_BE_SEEN}/x", r"traces\.log\.path is .*variable NOWHERE_TO_BE_SEEN"),
        ("traces.log.from_s", 100, r"traces\.log: .*no row from 100 s"),
        ("faults", [{}], r"faults\.0 has none of"),
        ("faults", [{"store_outage": ONE, "broker_outage": ONE}], r"faults\.0 has .*exactly one"),
        (
            "faults",
            [{"kill_engine": {"at_s": 1, "instance": "a100"}}],
            r"faults\.0 has 'a100'; expected one of",
        ),
        ("faults", [{"store_outage": {"at_s": -1, "for_s": 1}}], r"faults\.0\.store_outage\.at_s is -1"),
        ("limits.horizon_s", float("inf"), r"limits\.horizon_s is inf; expected a finite number"),
        ("limits.queue_depth_max", 0, r"limits\.queue_depth_max is 0; expected at least 1"),
        ("network.store_ms", -1, r"network\.store_ms is -1"),
        ("controller.delta", 0, r"controller\.delta is 0; expected a number above 0"),
        ("profiles", ["missing"], "profiles has .*missing'; expected a folder"),
        ("instances.0.gpus", True, r"instances\.0\.gpus is True; expected a number"),
        ("limits.horizon_s", True, r"limits\.horizon_s is True; expected a number"),
        ("slo_classes.chat", {"ttft_ms": True}, r"slo_classes\.chat\.ttft_ms is True; expected a number"),
        ("workload.0.slo", {"shares": {"chat": True}}, r"shares\.chat is True; expected a number"),
        (ARRIVALS, {"poisson": {"rate_rps": 1, "requests": True}}, r"requests is True; expected a number"),
        (
            ARRIVALS,
            {"poisson": {"rate_rps": 1, "requests": 10**7}},
            r"requests is 10000000; expected at most",
        ),
        ("workload.1.model", 5, r"yaml: workload\.replay\.model is 5; expected text"),
        ("seeds", [1], "seeds is .*no key of this name"),
        ("base", 5, "base is 5; expected the path of a scenario file"),
        ("base", "missing.yaml", r"missing\.yaml: cannot be read"),
    ],
)
def test_a_wrong_value_is_named_with_file_key_and_expectation(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    file = written(tmp_path, changed(key, value))
    with pytest.raises(ConfigError, match=message) as caught:
        load_scenario(file)
    text = str(caught.value)
    assert text.startswith(str(tmp_path))
    assert "\n" not in text


def test_one_mistake_in_a_list_of_one_is_one(tmp_path: Path) -> None:
    raw = changed("workload.1.model", 5)
    raw["workload"] = raw["workload"][1:]
    with pytest.raises(ConfigError, match=r"workload\.replay\.model is 5; expected text$"):
        load_scenario(written(tmp_path, raw))
    raw["faults"] = [{}]
    with pytest.raises(
        ConfigError, match=r"workload\.replay\.model is 5; expected text\n\S+: faults\.0 has none"
    ):
        load_scenario(written(tmp_path, raw))


def test_the_line_of_a_bad_trace_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, SOUND, LOG.replace("7,8", "-7,8"))
    with pytest.raises(ConfigError, match=r"scenario\.yaml: traces\.log: .*log\.csv:3: input_tokens is '-7'"):
        load_scenario(file)


def test_a_large_model_on_a_small_gpu_is_refused(tmp_path: Path) -> None:
    raw = changed("models.1", {"id": "llama-70b"})
    raw["instances"][0]["models"] = ["mistral-7b"]
    raw["instances"][1]["models"] = ["llama-70b"]
    raw["workload"][1]["models"]["m"] = "llama-70b"
    expected = r"scenario\.yaml: models has 'llama-70b' .*on 'A10'.*expected one of .*A100 with gpus 2"
    with pytest.raises(ConfigError, match=expected):
        load_scenario(written(tmp_path, raw))


def test_a_profile_that_does_not_fit_its_gpu_is_refused(tmp_path: Path) -> None:
    shipped = next(p for p in builtin_profiles() if (p.model, p.accelerator) == ("mistral-7b", "A10"))
    text = profile_text(shipped).replace(
        f"weights_bytes: {shipped.weights_bytes}", "weights_bytes: 99000000000"
    )
    assert "99000000000" in text
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/big.yaml").write_text(text)
    with pytest.raises(
        ConfigError, match=r"instances has 'a10-0' with the model 'mistral-7b'.*the 24\.1 GB of A10"
    ):
        load_scenario(written(tmp_path, changed("profiles", ["profiles"])))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"models: [", "is not YAML"),
        (b"name: a\nname: b\n", "the key 'name' stands twice"),
        (b"- 1\n", "holds a list; expected keys such as models, instances, slo_classes and workload"),
        (b"name: \xff\n", "is not UTF-8"),
        (b"name: x\n", "models is missing"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"s\.yaml: .*{message}|s\.yaml: {message}"):
        load_scenario(file)


def test_a_base_is_changed_key_by_key(tmp_path: Path) -> None:
    written(tmp_path, SOUND)
    (tmp_path / "more").mkdir()
    file = tmp_path / "more" / "later.yaml"
    file.write_text("base: ../scenario.yaml\ntraces: {log: {from_s: 1}}\n")
    section = read_scenario_file(file)
    assert section.name == "later"
    assert section.traces["log"].from_s == 1
    assert section.traces["log"].path.resolve() == tmp_path / "log.csv"
    assert len(load_scenario(file).make_workload(Seeds(1))) == 101


def test_a_base_of_a_base_is_refused(tmp_path: Path) -> None:
    written(tmp_path, changed("base", "x.yaml"))
    file = tmp_path / "later.yaml"
    file.write_text("base: scenario.yaml\n")
    with pytest.raises(ConfigError, match=r"later\.yaml: base is 'scenario\.yaml', based on 'x\.yaml'"):
        load_scenario(file)


def test_variables_in_paths_come_from_the_environment(tmp_path: Path) -> None:
    file = written(tmp_path, changed("traces.log.path", "${LOGS}/log.csv"))
    section = read_scenario_file(file, {"LOGS": "/somewhere"})
    assert section.traces["log"].path == Path("/somewhere/log.csv")


def test_the_path_of_a_base_may_begin_with_a_variable(tmp_path: Path) -> None:
    written(tmp_path, SOUND)
    (tmp_path / "more").mkdir()
    file = tmp_path / "more" / "later.yaml"
    file.write_text("base: ${SCENARIOS}/scenario.yaml\n")
    section = read_scenario_file(file, {"SCENARIOS": str(tmp_path)})
    assert section.traces["log"].path == tmp_path / "log.csv"
    with pytest.raises(ConfigError, match=r"later\.yaml: base is .*the environment variable SCENARIOS to be"):
        read_scenario_file(file, {})


def test_traces_that_no_stream_names_are_not_read(tmp_path: Path) -> None:
    raw = changed("traces.unused", {"path": "missing.csv", "format": "csv"})
    assert len(load_scenario(written(tmp_path, raw)).make_workload(Seeds(1))) == 102


@pytest.mark.parametrize("setting", [True, False, None])
def test_a_model_sets_how_its_engines_schedule(tmp_path: Path, setting: bool | None) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(changed("models.0.async_scheduling", setting)))
    shipped = {(p.model, p.accelerator): p.async_scheduling for p in builtin_profiles() if p.gpus == 1}
    for (model, kind), profile in load_scenario(file).fleet.profiles.items():
        own = shipped[model, kind.split(" ")[0]]
        assert profile.async_scheduling == (setting if model == "mistral-7b" and setting is not None else own)


def test_an_instance_says_which_of_its_models_is_awake_at_the_start(tmp_path: Path) -> None:
    plain = load_scenario(written(tmp_path, SOUND)).instances[0]
    assert plain.awake is None
    chosen = load_scenario(written(tmp_path, changed("instances.0.awake", plain.models[-1]))).instances[0]
    assert chosen.awake == plain.models[-1]
    with pytest.raises(ConfigError, match=r"instances\.0\.awake is 'other'; expected one of its models: "):
        load_scenario(written(tmp_path, changed("instances.0.awake", "other")))


def test_a_warm_up_arrives(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, changed("limits.warm_up_s", 30))).warm_up_s == 30.0


def test_the_quickstart_needs_no_trace() -> None:
    scenario = load_scenario(ROOT / "examples/scenarios/quickstart.yaml")
    workload = scenario.make_workload(Seeds(1))
    assert {len(scenario.models), len(scenario.instances)} == {2}
    assert set(workload.slo_class.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks/scenarios").glob("*.yaml")), ids=lambda f: f.stem)
def test_scenarios_of_benchmarks_are_sound(file: Path, tmp_path: Path) -> None:
    section = read_scenario_file(file, {"QLM_TRACES": str(tmp_path)})
    assert section.name
    assert all(trace.path.is_relative_to(tmp_path) for trace in section.traces.values())


def test_a_token_budget_reaches_the_profiles_of_its_kind(tmp_path: Path) -> None:
    raw = changed("instances.0.batched_tokens_max", 4096)
    profiles = load_scenario(written(tmp_path, raw)).fleet.profiles
    budgets = {(model, kind): profile.batched_tokens_max for (model, kind), profile in profiles.items()}
    assert budgets == {
        ("mistral-7b", "A100"): 4096,
        ("vicuna-13b", "A100"): 4096,
        ("mistral-7b", "A10"): 2048,
    }


def test_instances_of_one_kind_have_one_token_budget(tmp_path: Path) -> None:
    raw = changed("instances.1.accelerator", "A100")
    raw["instances"][1]["batched_tokens_max"] = 512
    with pytest.raises(
        ConfigError,
        match=r"'a10-0' with batched_tokens_max 512; expected None, as 'a100-0' of the same kind A100 has",
    ):
        load_scenario(written(tmp_path, raw))
