"""`qlm serve` as a user meets it: one process, emulated engines, the unmodified OpenAI client."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from support.ports import free_port
from support.qlm_process import QLM, QlmProcess, emulated, serving

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def served() -> Iterator[QlmProcess]:
    """Two models that share two emulated A100, one of them loaded on each."""
    config = emulated("mistral-7b", "llama-3-8b", time_scale=0.1)
    config["instances"] = [
        {"id": "left", "accelerator": "A100", "models": ["mistral-7b", "llama-3-8b"]},
        {"id": "right", "accelerator": "A100", "models": ["llama-3-8b", "mistral-7b"]},
    ]
    with serving(config) as process:
        yield process


@pytest.fixture
def client(served: QlmProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_answer_streams_to_the_openai_client(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="mistral-7b",
        messages=[{"role": "user", "content": "Why is the sky blue?"}],
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(text) > 0
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= 40
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")


def test_a_completion_with_a_deadline_comes_back_whole(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="llama-3-8b",
        prompt="Once upon a time",
        max_tokens=30,
        extra_body={"slo": {"deadline_ms": 20_000}, "ignore_eos": True},
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (16, 30)


def test_the_same_prompt_gives_the_same_greedy_answer_on_either_model_instance(client: openai.OpenAI) -> None:
    def ask() -> str:
        return client.completions.create(model="mistral-7b", prompt="x", max_tokens=25).choices[0].text

    assert ask() == ask()


def test_a_tool_is_called_and_json_fits_its_schema(client: openai.OpenAI) -> None:
    town = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
    function = {"name": "weather", "parameters": town}
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Will it rain?"}]}
    tools: dict[str, Any] = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    message = client.chat.completions.create(model="mistral-7b", **asked, **tools).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"town"}
    schema = {"type": "json_schema", "json_schema": {"name": "town", "schema": town}}
    asked["response_format"] = schema
    answer = client.chat.completions.create(model="llama-3-8b", **asked)
    assert set(json.loads(answer.choices[0].message.content)) == {"town"}


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"mistral-7b", "llama-3-8b"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": "nobody", "prompt": "x"}, ["model", "nobody"]),
        ({"model": "mistral-7b", "prompt": "x" * 5000}, ["prompt", "5000", "4095"]),
        ({"model": "mistral-7b", "prompt": "x", "slo": {"deadline_ms": -5}}, ["slo.deadline_ms", "-5"]),
        ({"model": "mistral-7b", "prompt": "x", "slo": {"deadline_s": 5}}, ["slo.deadline_s"]),
        ({"model": "mistral-7b", "prompt": "x", "slo": {"deadline_at": 1000}}, ["slo.deadline_at", "1000"]),
        ({"model": "mistral-7b", "prompt": "x", "max_tokens": "many"}, ["max_tokens", "many"]),
        ({"model": "mistral-7b", "prompt": "x", "best_of": 4}, ["best_of"]),
        ({"model": "mistral-7b", "prompt": []}, ["prompt"]),
    ],
)
def test_bad_input_is_refused_by_name_and_nothing_enters_the_queue(
    served: QlmProcess, body: dict[str, object], words: list[str]
) -> None:
    before = httpx.get(f"{served.admin_url}/admin/v1/requests", timeout=120).json()["requests"]
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=120)
    assert 400 <= answer.status_code < 500
    error = answer.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert all(word in error["message"] for word in words), error["message"]
    assert httpx.get(f"{served.admin_url}/admin/v1/requests", timeout=120).json()["requests"] == before


def test_malformed_json_is_refused(served: QlmProcess) -> None:
    answer = httpx.post(f"{served.url}/v1/completions", content=b'{"model": ', headers=JSON, timeout=120)
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]["message"]


def test_work_nobody_waits_for_is_accepted_and_fetched_later(served: QlmProcess) -> None:
    answer = httpx.post(
        f"{served.url}/v1/completions",
        json={"model": "mistral-7b", "prompt": "report", "max_tokens": 20, "ignore_eos": True},
        headers={"Prefer": "respond-async", "Idempotency-Key": "report-1"},
        timeout=120,
    )
    assert answer.status_code == 202
    again = httpx.post(
        f"{served.url}/v1/completions",
        json={"model": "mistral-7b", "prompt": "report", "max_tokens": 20, "ignore_eos": True},
        headers={"Prefer": "respond-async", "Idempotency-Key": "report-1"},
        timeout=120,
    )
    assert again.headers["location"] == answer.headers["location"]
    finished = wait_ended(served.url + answer.headers["location"])
    assert finished["response"]["usage"]["completion_tokens"] == 20


def wait_ended(url: str) -> dict[str, Any]:
    """Poll a request until it has ended; the test's timeout bounds it."""
    while True:
        seen: dict[str, Any] = httpx.get(url, timeout=120).raise_for_status().json()
        if seen["status"] == "ended":
            return seen


@pytest.mark.parametrize("command", ["queues", "groups", "requests", "instances", "doctor"])
def test_inspecting_commands_print_tables_and_json(served: QlmProcess, command: str) -> None:
    table = subprocess.run(
        [QLM, command, "--url", served.admin_url], capture_output=True, text=True, check=True
    )
    assert table.stdout.strip()
    printed = subprocess.run(
        [QLM, command, "--json", "--url", served.admin_url], capture_output=True, text=True, check=True
    )
    json.loads(printed.stdout)


def test_the_story_of_a_request_names_its_instance(served: QlmProcess, client: openai.OpenAI) -> None:
    id = client.completions.create(model="mistral-7b", prompt="story", max_tokens=5).id.removeprefix("cmpl-")
    printed = subprocess.run(
        [QLM, "requests", id, "--json", "--url", served.admin_url], capture_output=True, text=True, check=True
    )
    history = json.loads(printed.stdout)
    assert [event["what"] for event in history["events"]] == ["accepted", "leased", "ended"]
    assert history["events"][1]["instance"] in ("left", "right")


def test_a_long_request_can_be_cancelled_from_the_command_line(served: QlmProcess) -> None:
    answer = httpx.post(
        f"{served.url}/v1/completions",
        json={"model": "mistral-7b", "prompt": "long", "max_tokens": 4000, "ignore_eos": True},
        headers={"Prefer": "respond-async"},
        timeout=120,
    )
    id = answer.json()["id"]
    subprocess.run([QLM, "cancel", id, "--url", served.admin_url], check=True, capture_output=True)
    assert wait_ended(f"{served.url}/v1/requests/{id}")["outcome"] == "cancelled"
    assert httpx.get(f"{served.url}/v1/requests/{id}", timeout=120).json()["error"]["code"] == "cancelled"


def test_a_gateway_that_is_not_there_is_said_in_one_line() -> None:
    port = free_port()
    ran = subprocess.run(
        [QLM, "queues", "--url", f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert len(ran.stderr.strip().splitlines()) == 1
    assert str(port) in ran.stderr


_I = "{id: i, accelerator: A10, models: [m]}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [", ["is not YAML"]),
        ("[]", ["list"]),
        ("models: []\ninstances: []", ["models", "at least 1"]),
        ("[" * 4000, ["nested"]),
        ("{models: [{id: m}], models: [{id: n}]}", ["twice", "'models'"]),
        (
            "{models: [{id: m, engine: vllm, path: /nope}], instances: [" + _I + "]}",
            ["'/nope'", "tokenizer.json"],
        ),
        (
            "{default_slo: {deadline_ms: .inf}, models: [{id: m}], instances: [" + _I + "]}",
            ["deadline_ms", "inf"],
        ),
        (
            "{default_slo: {tpot_ms: 3}, models: [{id: m}], instances: [" + _I + "]}",
            ["default_slo", "tpot_ms"],
        ),
        (
            "{models: [{id: m}], instances: [{id: ../x, accelerator: A10, models: [m]}]}",
            ["instances.0.id", "../x"],
        ),
        (
            "{models: [{id: m}], instances: [{id: i, accelerator: A10, models: [m], url: 'http://h:99999'}]}",
            ["url", "99999"],
        ),
        (
            "{broker: 'amqp://h/', store: 'redis://h:abc/x', models: [{id: m}], instances: [" + _I + "]}",
            ["store"],
        ),
        ("{models: [{id: m}], instances: [{id: i, accelerator: A10, models: [x]}]}", ["'x'", "['m']"]),
        ("{models: [{id: m, speed: 3}], instances: []}", ["models.0.speed"]),
        ("{http: {port: 99999}, models: [{id: m}], instances: []}", ["http.port", "99999"]),
        ("{models: [{id: m}], instances: [{id: i, accelerator: A10, models: [m]}]}", ["'m'", "A10"]),
        (
            "{broker: 'amqp://x', models: [{id: m}], instances: [{id: i, accelerator: A, models: [m]}]}",
            ["redis://"],
        ),
    ],
)
def test_a_bad_configuration_is_one_message_and_exit_2(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "qlm.yaml"
    file.write_text(text)
    ran = subprocess.run(
        [QLM, "serve", "--config", file, "--data-dir", tmp_path / "data"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 2, ran.stderr
    lines = ran.stderr.splitlines()
    assert 1 <= len(lines) <= 2, "a line for each mistake"
    assert all(str(file) in line for line in lines)
    assert all(word in ran.stderr for word in words), ran.stderr
    assert not (tmp_path / "data").exists(), "nothing was started"


def test_a_port_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = subprocess.run(
            [QLM, "serve", "--port", str(port), "--data-dir", tmp_path],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert ran.returncode == 1
    assert len(ran.stderr.strip().splitlines()) == 1
    assert str(port) in ran.stderr


def test_a_grpc_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = subprocess.run(
            [
                QLM,
                "serve",
                "--port",
                str(free_port()),
                "--grpc-port",
                str(port),
                "--data-dir",
                tmp_path / "d",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert ran.returncode == 1
    assert ran.stderr == (
        f"qlm: cannot listen on 127.0.0.1:{port}: address already in use; "
        "stop what uses it, or give --grpc-port\n"
    )
    assert not (tmp_path / "d").exists()


def test_a_gateway_takes_its_port_from_the_command_line(tmp_path: Path) -> None:
    config = emulated("mistral-7b", broker="amqp://127.0.0.1:1/", store="redis://127.0.0.1:1/0")
    file = tmp_path / "qlm.yaml"
    file.write_text(json.dumps(config))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        argv: list[str | Path] = [
            QLM,
            "gateway",
            "--config",
            file,
            "--port",
            str(port),
            "--grpc-port",
            "0",
            "--admin-port",
            "0",
        ]
        ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"qlm: cannot listen on 127.0.0.1:{port}: address already in use")


@pytest.mark.parametrize(
    ("broker", "store", "port_of"),
    [("amqp://guest:guest@127.0.0.1:{port}/", "redis://127.0.0.1:{port}/0", "both")],
)
def test_servers_that_are_not_there_are_said_in_one_line(
    tmp_path: Path, broker: str, store: str, port_of: str
) -> None:
    port = free_port()
    config = emulated("mistral-7b", broker=broker.format(port=port), store=store.format(port=port))
    file = tmp_path / "qlm.yaml"
    file.write_text(
        json.dumps(config | {"http": {"port": free_port()}, "grpc": {"port": 0}, "admin": {"port": 0}})
    )
    ran = subprocess.run(
        [QLM, "gateway", "--config", file], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 1
    assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr
    assert str(port) in ran.stderr


def test_a_second_process_on_the_same_queue_file_is_refused(served: QlmProcess, tmp_path: Path) -> None:
    config = emulated("mistral-7b", data_dir=str(tmp_path / "data"))
    with serving(config) as first:
        assert first.alive
        ran = subprocess.run(
            [
                QLM,
                "serve",
                "--port",
                str(free_port()),
                "--grpc-port=0",
                "--admin-port=0",
                "--data-dir",
                tmp_path / "data",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert ran.returncode == 1
    assert len(ran.stderr.strip().splitlines()) == 1
    assert "qlm.sqlite" in ran.stderr
