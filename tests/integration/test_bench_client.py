"""The client of `qlm bench` against servers that behave, are slow, refuse, hang, or cut their streams."""

import asyncio
import json
import os
import socket
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from qlm.cli.bench import events
from qlm.cli.bench.client import Target, Watch, ask_models, run_plan
from qlm.cli.bench.record import Run
from qlm.cli.bench.report import Judging, report
from qlm.cli.bench.schedule import Planned
from qlm.cli.main import main
from qlm.domain.errors import QlmError
from support.completions_server import Respond, serving, streamed
from support.emulated_engine import engine_command
from support.ports import free_port
from support.process import ServerProcess
from support.qlm_process import QLM


async def measured(
    target: Target,
    planned: list[Planned],
    *,
    patience_s: float = 20.0,
    on_sent: Callable[[], None] = lambda: None,
) -> Run:
    watch = Watch(clock_s=asyncio.get_running_loop().time, on_sent=on_sent)
    prompts = [[11] * each.prompt_tokens for each in planned]
    return await run_plan(target, planned, prompts, watch, patience_s=patience_s, seed=1)


LOAD = ["--request-rate", "50", "--num-prompts", "12", "--input-len", "20", "--output-len", "8"]
PLANNED = [Planned(0.02 * number, 3, 4) for number in range(10)]


async def test_the_schedule_holds_while_the_server_answers_nothing() -> None:
    arrived, all_sent = 0, asyncio.Event()

    async def respond(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        if arrived == len(PLANNED):
            all_sent.set()
        await all_sent.wait()  # a closed loop would wait here for ever
        return await streamed(request, 4)

    async with serving(respond) as target:
        run = await measured(target, PLANNED)
    assert all(each.answered for each in run.requests)
    assert [each.scheduled_s for each in run.requests] == [each.at_s for each in PLANNED]
    assert all(each.sent_s >= each.scheduled_s - 0.002 for each in run.requests)
    # The first waited for the last to be sent, and that is part of its latency.
    assert run.requests[0].first_token_s >= PLANNED[-1].at_s


async def test_bodies_are_those_of_the_api() -> None:
    bodies: list[dict[str, Any]] = []
    headers: list[str | None] = []

    async def respond(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        bodies.append(body)
        headers.append(request.headers.get("x-slo-ttft-ms"))
        return await streamed(request, 2)

    slo = {"slo": {"ttft_ms": 500}}
    async with serving(respond) as target:
        full = replace(target, counts=True, extra_body=slo, headers={"x-slo-ttft-ms": "500"})
        await measured(full, [Planned(0, 3, 4)])
    assert bodies == [
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "max_tokens": 4,
            "ignore_eos": True,
            "prompt": [11, 11, 11],
            "slo": {"ttft_ms": 500},
        }
    ]
    assert headers == ["500"]
    chat = json.loads(replace(target, endpoint="/v1/chat/completions", ignore_eos=False).body([11, 12], 4))
    assert len(chat["messages"][0]["content"].split()) == 2
    assert "ignore_eos" not in chat
    assert "prompt" not in chat


async def test_infinite_patience_gives_up_nothing() -> None:
    async def respond(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return await streamed(request, 4)

    async with serving(respond) as target:
        run = await measured(target, PLANNED, patience_s=float("inf"))
    assert all(each.answered for each in run.requests)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A way to fail, and the error that the client reports."""

    respond: Respond
    error: str


async def refuse(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "the queue is full"}}, status=429)


async def refuse_in_text(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=503, text="away")


async def hang(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def hang_in_mid_stream(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await streamed(request, 2, end=False)
    return await hang(request, body)


async def cut(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    return await streamed(request, 2, end=False)


async def drop(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    response = await streamed(request, 2, end=False)
    assert request.transport is not None
    request.transport.abort()
    return response


async def error_event(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    response = await streamed(request, 2, end=False)
    await response.write(
        b'event: error\ndata: {"error": {"message": "the engine was lost"}}\n\ndata: [DONE]\n\n'
    )
    return response


async def nothing(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    return await streamed(request, 0)


FAILING = {
    "refuses": Behaviour(refuse, "HTTP 429: the queue is full"),
    "refuses in text": Behaviour(refuse_in_text, "HTTP 503: away"),
    "hangs": Behaviour(hang, "unfinished after 0.5 s"),
    "hangs in mid-stream": Behaviour(hang_in_mid_stream, "unfinished after 0.5 s"),
    "cuts": Behaviour(cut, "the stream was cut"),
    "drops": Behaviour(drop, "connection: ClientPayloadError"),
    "sends an error": Behaviour(error_event, "the engine was lost"),
    "answers nothing": Behaviour(nothing, "no token"),
}


@pytest.mark.parametrize("name", FAILING)
async def test_nothing_that_was_sent_vanishes(name: str) -> None:
    behaviour, seen = FAILING[name], 0

    async def respond(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal seen
        seen += 1
        return await (behaviour.respond(request, body) if seen % 2 else streamed(request, 4))

    async with serving(respond) as target:
        run = await measured(target, PLANNED, patience_s=0.5)
    found = report([run], Judging(goodput_ms={"e2el": 10_000.0}, resamples=20))
    assert found["requests"] == len(PLANNED)
    assert found["answered"] + found["failed"] == len(PLANNED)
    # The client may give up a good answer of a slow machine, too.
    assert found["failed"] >= seen // 2
    assert found["errors"][behaviour.error] >= seen // 2
    reader = found["readers"][0]
    assert reader["met_share"] <= 0.5
    assert reader["smooth_goodput_share"] <= 0.5
    assert reader["qoe_star_mean"] <= 0.5
    assert reader["idle_max_s"] == float("inf")
    assert found["scheduled"]["scheduled_good_share"] <= 0.5


async def test_a_server_that_is_not_there_fails_each_request() -> None:
    target = Target(
        url=f"http://127.0.0.1:{free_port()}", endpoint="/v1/completions", model="m", counts=False
    )
    run = await measured(target, PLANNED)
    assert [each.error for each in run.requests] == ["connection: Connection refused"] * len(PLANNED)


async def odd_place(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"id: " + b"9" * 5000 + b'\ndata: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\r\r')
    return response


async def test_an_id_line_that_is_no_count_and_lone_carriage_returns_do_no_harm() -> None:
    async with serving(odd_place) as target:
        run = await measured(target, PLANNED[:2])
    assert [(each.error, each.tokens) for each in run.requests] == [(None, 1)] * 2


async def two_choices(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for index in (0, 1, 0, 1):
        event = {"choices": [{"index": index, "text": "a"}]}
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


async def test_an_answer_of_several_choices_fails_instead_of_counting_as_one_fast_answer() -> None:
    async with serving(two_choices) as target:
        run = await measured(target, PLANNED[:2])
    assert [each.error for each in run.requests] == ["an answer of several choices: one is measured"] * 2


async def test_an_unexpected_error_of_a_request_is_its_result() -> None:
    async with serving(cut) as target:
        run = await measured(replace(target, headers={"x-odd": "a\nb"}), PLANNED[:2])
    assert [(each.error or "").partition(":")[0] for each in run.requests] == ["ValueError"] * 2


async def test_a_header_in_other_letters_replaces_the_key() -> None:
    """OPENAI_API_KEY may be set for another server: both came, and the first one counted."""
    keys: list[list[str]] = []

    async def respond(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        keys.append(request.headers.getall("Authorization"))
        return await streamed(request, 4)

    async with serving(respond) as target:
        argv = (str(QLM), "bench", target.url, *LOAD, "--header", "Authorization=Bearer its own")
        env = dict(os.environ, OPENAI_API_KEY="another")
        process = await asyncio.create_subprocess_exec(*argv, env=env, stdout=DEVNULL)
        assert await process.wait() == 0
    assert keys == [["Bearer its own"]] * 12


async def test_models_are_asked_for_and_need_an_answer_unless_one_is_named() -> None:
    async with serving(nothing) as target:
        assert await ask_models(target.url, {}, None, 5.0) == ("m", True)
        assert await ask_models(target.url, {}, "n", 5.0) == ("n", False)
    assert await ask_models(target.url, {}, "m", 5.0) == ("m", False)
    with pytest.raises(QlmError, match="--model"):
        await ask_models(target.url, {}, None, 5.0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An emulated engine."""
    port = free_port()
    argv = engine_command(port, "mistral", seqs_max=8, more=("--time-scale", "0.2"))
    process = ServerProcess("engine", argv, env={}, folder=tmp_path_factory.mktemp("engine"))
    process.start()
    try:
        process.wait_ready(lambda: _listens(port), timeout_s=60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def bench(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main.load("bench"), list(arguments))
    return done.exit_code, done.output


def test_a_measurement_is_saved_scored_and_compared(engine: str, tmp_path: Path) -> None:
    files = [str(tmp_path / name / "run.json") for name in ("a", "b")]
    for file in files:
        code, output = bench(f"{engine}/v1/", *LOAD, "--repeat", "2", "--save", file)
        assert code == 0, output
        assert "24 requests sent in 2 runs, 24 answered, 0 failed" in output
        assert any(how in output for how in (events.USAGE, events.EVENTS)), output
    limits = ("--goodput", "ttft:5000", "tpot:1000", "--json")
    code, output = bench("score", files[0], *limits)
    assert code == 0, output
    (scored,) = json.loads(output)
    assert (scored["requests"], scored["vllm"]["total_output_tokens"]) == (24, 24 * 8)
    assert scored["vllm"]["total_input_tokens"] == 24 * 20
    assert scored["goodput_ms"] == {"ttft": 5000, "tpot": 1000}
    saved = json.loads(Path(files[0]).read_text("utf-8"))
    assert [run["seed"] for run in saved["runs"]] == [0, 1]
    assert scored["readers"][1] == saved["report"]["readers"][1]
    code, output = bench("--compare", *files, "--reader", "10", "--json")
    assert code == 0, output
    (compared,) = json.loads(output)
    assert compared["paired"] is True
    assert (
        compared["met_share"]["difference"]
        == compared["met_share"]["second"] - compared["met_share"]["first"]
    )
    code, output = bench("--compare", *files)
    assert (code, "paired by request" in output) == (0, True)


def test_a_run_without_an_answer_fails_with_its_first_error(engine: str) -> None:
    code, output = bench(engine, *LOAD, "--model", "other")
    assert code == 1
    assert "12 requests sent, 0 answered, 12 failed" in output
    assert "qlm: no request was answered: HTTP 404" in output
