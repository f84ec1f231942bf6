import asyncio
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.file import profile_mapping
from qlm.simulator.emulation.command import load_profile, main, make_engine, make_server
from qlm.simulator.emulation.emulator import Emulator
from qlm.simulator.emulation.options import EmulateOptions, parse_options
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.fixed import FixedLatencyEngine
from qlm.simulator.engine.residency import ResidentEngine

PROFILE = find_profile(builtin_profiles(), "mistral-7b", "A10")
MODEL: dict[str, Any] = {"model": "mistral-7b", "accelerator": "A10"}


def test_the_engine_is_as_large_as_its_profile_less_the_reserved_block() -> None:
    capacity = make_engine(EmulateOptions(**MODEL), PROFILE).capacity
    assert capacity.kv_tokens == PROFILE.kv_tokens - PROFILE.block_tokens
    assert (capacity.seqs_max, capacity.context_tokens) == (PROFILE.seqs_max, PROFILE.context_tokens)


def test_options_override_the_profile() -> None:
    options = parse_options(
        ["--model", "mistral-7b", "--accelerator", "A10", "--kv-tokens", "1000", "--max-num-seqs", "3"]
    )
    engine = make_engine(options, PROFILE)
    assert isinstance(engine, BatchingEngine)
    assert engine.capacity.seqs_max == 3
    assert engine.capacity.kv_tokens == engine.capacity.context_tokens == 61 * 16


def test_the_token_budget_is_the_profiles_unless_given_and_has_room_for_the_batch() -> None:
    profile = replace(PROFILE, batched_tokens_max=4096)
    for options, expected in (
        (MODEL, 4096),
        (MODEL | {"batched_tokens_max": 512}, 512),
        (MODEL | {"seqs_max": 5000}, 5000),
    ):
        assert make_engine(EmulateOptions(**options), profile).capacity.batched_tokens_max == expected
    with pytest.raises(InvalidValueError, match="batched_tokens_max is 100; expected at least 256"):
        make_engine(EmulateOptions(**MODEL, batched_tokens_max=100), profile)


@pytest.mark.parametrize(("given", "prompts"), [([], 1), (["--max-num-batched-tokens", "300"], 4)])
def test_the_tokens_of_an_iteration_are_the_profiles_unless_given(given: list[str], prompts: int) -> None:
    options = parse_options(["--model", "mistral-7b", "--accelerator", "A10", *given])
    engine = make_engine(options, replace(PROFILE, batched_tokens_max=1024))
    engine.add(EngineCall(call_id="r", prompt_ids=(7,) * 1000, sampling=Sampling(max_tokens=5)), 0)
    steps = 0
    while not engine.counters.generation_tokens:
        engine.step(0)
        steps += 1
    assert steps == prompts


@pytest.mark.parametrize(
    ("given", "of_profile", "joins_after"),
    [
        ([], False, 1),
        ([], True, 2),
        (["--async-scheduling"], False, 2),
        (["--no-async-scheduling"], True, 1),
    ],
)
def test_the_engine_schedules_as_its_profile_unless_given(
    given: list[str], of_profile: bool, joins_after: int
) -> None:
    options = parse_options(["--model", "mistral-7b", "--accelerator", "A10", *given])
    engine = make_engine(options, replace(PROFILE, async_scheduling=of_profile))
    engine.add(EngineCall(call_id="old", prompt_ids=(7,), sampling=Sampling(max_tokens=50)), 0)
    engine.step(0)
    engine.add(EngineCall(call_id="new", prompt_ids=(8,), sampling=Sampling(max_tokens=50)), 0)
    seen: list[str] = []
    steps = 0
    while "new" not in seen:
        step = engine.step(0)
        seen += [each.call_id for each in step.emissions] if step else []
        steps += 1
    assert steps == joins_after


@pytest.mark.parametrize("given", [[], ["--async-scheduling"], ["--no-async-scheduling"]])
def test_the_server_reports_the_scheduling_with_which_its_engine_runs(given: list[str]) -> None:
    options = parse_options(["--model", "mistral-7b", "--accelerator", "A10", *given])
    engine = make_engine(options, PROFILE)
    emulator = Emulator(engine, ResidentEngine(PROFILE), time_scale=1.0, clock_ns=time.monotonic_ns)
    transport = httpx.ASGITransport(make_server(options, PROFILE, emulator).app)

    async def reported() -> Any:
        async with httpx.AsyncClient(transport=transport, base_url="http://emulated") as client:
            return (await client.get("/server_info")).json()["vllm_config"]["scheduler_config"]

    expected = given == ["--async-scheduling"] if given else PROFILE.async_scheduling
    assert asyncio.run(reported())["async_scheduling"] is expected


def test_a_fixed_time_gives_the_fixed_engine() -> None:
    options = parse_options(["--model", "mistral-7b", "--accelerator", "A10", "--fixed-ms", "50"])
    assert isinstance(make_engine(options, PROFILE), FixedLatencyEngine)


def test_a_profile_file_can_be_given_instead_of_a_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(profile_mapping(PROFILE) | {"accelerator": "H100"}))
    assert load_profile(parse_options(["--profile", str(file)])).accelerator == "H100"
    file.write_text("version: 1")
    with pytest.raises(InvalidValueError, match=r"mine\.yaml: profile\.model"):
        load_profile(parse_options(["--profile", str(file)]))
    file.write_bytes("# 80 µs".encode("latin-1"))
    with pytest.raises(InvalidValueError, match=r"mine\.yaml'; expected a file in UTF-8"):
        load_profile(parse_options(["--profile", str(file)]))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "mistral-7b"}, "accelerator"),
        ({}, "accelerator"),
        (MODEL | {"time_scale": 0.0}, "time-scale"),
        (MODEL | {"time_scale": float("nan")}, "time-scale"),
        (MODEL | {"port": 65536}, "port"),
        (MODEL | {"port": -1}, "port"),
        (MODEL | {"mean_output_tokens": 0.5}, "mean-output-tokens"),
        (MODEL | {"mean_output_tokens": float("nan")}, "mean-output-tokens"),
        (MODEL | {"watermark": 1.0}, "watermark"),
        (MODEL | {"host": "a..b"}, "host"),
        (MODEL | {"host": "a\0b"}, "host"),
        (MODEL | {"host_kv_gib": -1.0}, "kv-offloading-size"),
        (MODEL | {"host_kv_gib": float("nan")}, "kv-offloading-size"),
        (MODEL | {"kv_tokens": 20}, "kv-tokens"),
        (MODEL | {"kv_tokens": 512, "context_tokens": 512}, "kv-tokens"),
        (MODEL | {"fixed_ms": 0.0}, "fixed-ms"),
        (MODEL | {"fixed_ms": float("nan")}, "fixed-ms"),
        (MODEL | {"fixed_ms": float("inf")}, "fixed-ms"),
        (MODEL | {"seqs_max": -1}, "max-num-seqs is -1; expected at least 1"),
        (MODEL | {"seqs_max": 0}, "max-num-seqs is 0"),
        (MODEL | {"batched_tokens_max": 0}, "max-num-batched-tokens is 0"),
        (MODEL | {"context_tokens": 0}, "max-model-len is 0"),
        (MODEL | {"kv_tokens": 0}, "kv-tokens is 0"),
    ],
)
def test_unusable_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        make_engine(EmulateOptions(**options), PROFILE)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "gpt-9", "--accelerator", "A10"],
        ["--profile", "/no/such/file"],
        ["--model", "mistral-7b", "--accelerator", "A10", "--time-scale", "0"],
    ],
)
def test_the_command_ends_with_one_sentence_and_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("qlm emulate: ")
    assert said.count("\n") == 1


def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--model", "mistral-7b", "--accelerator", "A10", "--port", port]) == 2
    assert f"port is {port}" in capsys.readouterr().err


def test_a_cold_start_comes_before_listening(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        scale = ["--cold-start", "--time-scale", "0.01", "--port", port]
        start_s = time.monotonic()
        assert main(["--model", "mistral-7b", "--accelerator", "A10", *scale]) == 2
        assert time.monotonic() - start_s >= PROFILE.swap_cold_s * 0.01
    assert "port is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--otlp-traces-endpoint", ""),
            "otlp-traces-endpoint is ''; expected an address such as http://host",
        ),
        (("--otlp-traces-endpoint", "host:4318"), "otlp-traces-endpoint is 'host:4318'; expected an address"),
        (("--otlp-traces-endpoint", "http://h:4318 /v1/traces"), "otlp-traces-endpoint is"),
        (("--otlp-traces-endpoint", "http://h:99999"), "otlp-traces-endpoint is"),
        (("--lora-modules", "=/path"), "lora-modules is ''; expected a name"),
        (("--lora-modules", "poet=/a", "poet=/b"), "lora-modules is 'poet'; expected a name that neither"),
        (("--lora-modules", "mistral-7b=/a"), "lora-modules is 'mistral-7b'; expected a name that neither"),
        (("--lora-modules", '{"path": "/a"}'), "expected NAME=PATH, or JSON with name and path"),
        (("--lora-modules", '{"name": 3}'), "expected NAME=PATH, or JSON with name and path"),
    ],
)
def test_addresses_and_adapters_that_cannot_be_used_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.simulator.emulation.command.load_profile", None)  # before anything starts
    try:
        code = main(["--model", "mistral-7b", "--accelerator", "A10", *words])
    except SystemExit as ended:  # of argparse
        code = ended.code if isinstance(ended.code, int) else 0
    assert (code, said in capsys.readouterr().err) == (2, True)


def test_adapters_are_named_as_for_vllm_and_their_paths_not_read() -> None:
    plain = ["--model", "m", "--accelerator", "A10"]
    assert parse_options([*plain, "--lora-modules", "poet=/nowhere", "clerk"]).adapters == ("poet", "clerk")
    as_json = ("--lora-modules", '{"name": "poet", "path": "/nowhere"}', "clerk=/nowhere")
    assert parse_options([*plain, *as_json]).adapters == ("poet", "clerk")
    assert parse_options(plain).adapters == ()
