"""Command lines of engines: what an agent tells vLLM, and the emulated engine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import qlm.agents
from qlm.agents.engines.adapters import SLOTS_MAX, Adapter
from qlm.agents.engines.command import (
    EmulateSettings,
    VllmScheduling,
    VllmSettings,
    emulate_command,
    vllm_command,
)
from qlm.agents.vllm_scheduler.settings import SCHEDULER_CLASS, VARIABLE, SchedulerSettings
from qlm.domain.errors import InvalidValueError


def test_kv_blocks_are_offloaded_with_answers_and_a_failed_load_is_computed() -> None:
    settings = VllmSettings(model="/nowhere", served_model_name="m", port=8100, host_kv_bytes=2**30)
    argv = vllm_command(settings).argv
    given = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    assert given["kv_connector"] == "OffloadingConnector"
    assert given["kv_load_failure_policy"] == "recompute"
    assert given["kv_connector_extra_config"] == {"cpu_bytes_to_use": 2**30, "offload_prompt_only": False}
    assert "--kv-transfer-config" not in vllm_command(replace(settings, host_kv_bytes=0)).argv


def test_beside_qlms_scheduler_blocks_of_ended_requests_are_dropped_first(tmp_path: Path) -> None:
    scheduling = VllmScheduling(settings=SchedulerSettings("unified"), import_path=tmp_path)
    settings = VllmSettings(
        model="/nowhere", served_model_name="m", port=8100, host_kv_bytes=2**30, scheduling=scheduling
    )
    argv = vllm_command(settings).argv
    extra = json.loads(argv[argv.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]
    module = Path(*extra["cache_policy_module_path"].split(".")[2:]).with_suffix(".py")
    text = Path(qlm.agents.__path__[0], module).read_text("utf-8")
    assert f"class {extra['eviction_policy']}(" in text


def test_vllm_reads_the_end_tokens_that_the_gateway_reads() -> None:
    settings = VllmSettings(model="/nowhere", served_model_name="m", port=8100)
    assert "--generation-config" not in vllm_command(settings).argv
    for source in ("vllm", "/etc/qlm/mine"):
        argv = vllm_command(replace(settings, generation_config=source)).argv
        assert argv[argv.index("--generation-config") + 1] == source


def test_vllm_is_started_with_the_adapters_of_its_model_and_room_for_their_ranks() -> None:
    plain = VllmSettings(model="/nowhere", served_model_name="m", port=8100, extra=("--max-loras", "2"))
    assert not {"--enable-lora", "--lora-modules"} & set(vllm_command(plain).argv)
    adapters = tuple(Adapter(f"a{number}", Path(f"/a/{number}"), 4 * number) for number in range(1, 11))
    argv = vllm_command(replace(plain, adapters=adapters)).argv
    assert "--enable-lora" in argv
    assert argv[argv.index("--max-loras") + 1] == str(SLOTS_MAX)
    assert argv[argv.index("--max-lora-rank") + 1] == "64"
    begin = argv.index("--lora-modules") + 1
    named = [json.loads(word) for word in argv[begin : begin + len(adapters)]]
    assert named == [{"name": each.name, "path": str(each.path)} for each in adapters]
    assert argv[begin + len(adapters) :] == ("--max-loras", "2")  # the operator's own, which vLLM takes


def test_a_batch_policy_starts_vllm_with_qlms_scheduler_and_synchronous_scheduling(tmp_path: Path) -> None:
    plain = VllmSettings(model="/nowhere", served_model_name="m", port=8100)
    scheduling = VllmScheduling(settings=SchedulerSettings("fcfs"), import_path=tmp_path)
    command = vllm_command(replace(plain, scheduling=scheduling))
    assert command.argv[command.argv.index("--scheduler-cls") + 1] == SCHEDULER_CLASS
    assert "--no-async-scheduling" in command.argv
    assert SchedulerSettings.parse(command.env[VARIABLE]) == scheduling.settings
    assert command.env["PYTHONPATH"] == str(tmp_path)
    asynchronous = replace(plain, scheduling=replace(scheduling, async_scheduling=True))
    assert "--no-async-scheduling" not in vllm_command(asynchronous).argv
    assert "--scheduler-cls" not in vllm_command(plain).argv


def test_an_engine_of_several_gpus_uses_tensor_parallelism_unless_configured_otherwise() -> None:
    settings = VllmSettings(model="/nowhere", served_model_name="m", port=8100, gpus=2)
    argv = vllm_command(settings).argv
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert "--tensor-parallel-size" not in vllm_command(replace(settings, gpus=1)).argv
    for extra in (("-tp", "2"), ("--pipeline-parallel-size=2",)):
        argv = vllm_command(replace(settings, extra=extra)).argv
        assert "--tensor-parallel-size" not in argv
        assert argv[-len(extra) :] == extra


def test_the_vllm_command_opens_what_agents_need_on_loopback_only() -> None:
    settings = VllmSettings(
        model="/nowhere", served_model_name="m", port=8100, seqs_max=8, batched_tokens_max=512, cpu=True
    )
    command = vllm_command(settings)
    assert command.argv[command.argv.index("--max-num-batched-tokens") + 1] == "512"
    assert command.argv[:3] == ("vllm", "serve", "/nowhere")
    assert {"--enable-scale-out", "--enforce-eager"} <= set(command.argv)
    own = VllmSettings(
        model="/nowhere", served_model_name="m", port=8100, extra=("--no-disable-uvicorn-access-log",)
    )
    argv = vllm_command(own).argv
    assert argv.index("--disable-uvicorn-access-log") < argv.index(own.extra[0]), "the operator's counts"
    assert "--enable-sleep-mode" not in command.argv
    assert "None" not in command.argv
    assert command.env["VLLM_SERVER_DEV_MODE"] == "1"
    gpu = vllm_command(VllmSettings(model="/nowhere", served_model_name="m", port=8100))
    assert "--enable-sleep-mode" in gpu.argv
    assert "--max-num-batched-tokens" not in gpu.argv
    with pytest.raises(InvalidValueError, match=r"engine.host is '0.0.0.0'"):
        vllm_command(VllmSettings(model="x", served_model_name="x", port=1, host="0.0.0.0"))


@pytest.mark.parametrize(
    ("setting", "flags"), [(None, set()), (True, {"--async-scheduling"}), (False, {"--no-async-scheduling"})]
)
def test_the_emulate_command_says_how_to_schedule_if_that_is_set(
    setting: bool | None, flags: set[str]
) -> None:
    command = emulate_command(EmulateSettings(port=8100, model="m", async_scheduling=setting))
    assert {word for word in command.argv if word.endswith("async-scheduling")} == flags


def test_the_emulate_command_names_only_what_is_set() -> None:
    command = emulate_command(EmulateSettings(port=8100, model="m", accelerator="A10", fixed_ms=50))
    assert command.argv[1:5] == ("-P", "-m", "qlm.simulator.emulation.command", "--no-cold-start")
    assert command.argv[5:] == ("--port", "8100", "--model", "m", "--accelerator", "A10", "--fixed-ms", "50")
