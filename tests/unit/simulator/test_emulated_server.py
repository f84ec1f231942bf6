"""The emulated server without sockets, in virtual time: a loop whose clock jumps to the next timer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import orjson
import pytest

from qlm.domain.byte_tokens import EOS_ID
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import pairs_of
from qlm.simulator.emulation.command import make_engine
from qlm.simulator.emulation.emulator import Emulator
from qlm.simulator.emulation.options import EmulateOptions
from qlm.simulator.emulation.server import EmulatedServer
from qlm.simulator.engine.residency import ResidentEngine
from qlm.simulator.engine.token_chain import digests

PROFILE = find_profile(builtin_profiles(), "llama-3-8b", "A10")
MS = 1_000_000


class VirtualLoop(asyncio.SelectorEventLoop):
    """Never waits: when nothing is ready, it is at once as late as the next timer wants."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__()

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now_s = max(self._now_s, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class World:
    """A client of an emulated server, and the virtual clock."""

    def __init__(self, *, request_s: float = 0.0, **options: Any) -> None:
        loop = asyncio.get_running_loop()
        self.options = EmulateOptions(model="llama-3-8b", accelerator="A10", **options)
        self.emulator = Emulator(
            make_engine(self.options, PROFILE), ResidentEngine(PROFILE), time_scale=self.options.time_scale,
            clock_ns=lambda: round(loop.time() * 1e9),
        )  # fmt: skip
        self._loop = loop
        transport = httpx.ASGITransport(
            EmulatedServer(self.emulator, "m", adapters=self.options.adapters, request_s=request_s).app
        )
        self.http = httpx.AsyncClient(transport=transport, base_url="http://emulated")

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    async def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
        return await self.http.post(path, json=body, headers=headers)

    async def events(self, path: str, **body: Any) -> list[Any]:
        """Post, and return the events of the stream; the last one must be [DONE]."""
        response = await self.post(path, stream=True, **body)
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [orjson.loads(event.removeprefix("data: ")) for event in events]

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("waited in vain for 100 virtual seconds")


def run(scenario: Callable[[World], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        world = World(**options)
        driver = asyncio.create_task(world.emulator.run())
        async with asyncio.timeout(3600), world.http:
            await scenario(world)
        driver.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def generate(prompt: list[int], tokens: int, **params: Any) -> dict[str, Any]:
    return {"token_ids": prompt, "sampling_params": {"max_tokens": tokens, "ignore_eos": True, **params}}


@pytest.mark.parametrize("time_scale", [1.0, 0.25, 3.0])
def test_an_answer_takes_exactly_as_long_as_the_profile_says(time_scale: float) -> None:
    async def scenario(world: World) -> None:
        await world.post("/inference/v1/generate", **generate([1] * 100, 50))
        ms = PROFILE.prefill_ms(1, 100) + sum(PROFILE.decode_ms(1, 100 + k) for k in range(1, 50))
        assert world.now_ms() == pytest.approx(ms * time_scale, rel=1e-6)
        assert world.emulator.lag_s == 0

    run(scenario, time_scale=time_scale)


def test_a_batch_policy_serves_the_objectives_that_requests_bring() -> None:
    async def scenario(world: World) -> None:
        ended: list[str] = []

        async def ask(name: str, **params: Any) -> None:
            await world.post("/inference/v1/generate", **generate([1] * 100, 20, **params))
            ended.append(name)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask("first"))
            await world.until(lambda: world.emulator.engine.running == 1)
            tasks.create_task(ask("without objective"))
            tasks.create_task(ask("unreadable", extra_args={"qlm": {"version": 9}}))
            await world.until(lambda: world.emulator.engine.waiting == 2)
            tasks.create_task(ask("urgent", extra_args={"qlm": {"version": 1, "left_s": 5.0}}))
        assert ended[0] == "urgent"
        assert sorted(ended[1:]) == ["first", "unreadable", "without objective"]

    run(scenario, batching="edf", seqs_max=1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_reaches_the_scheduler_after_its_time_outside_of_iterations(stream: bool) -> None:
    async def scenario(world: World) -> None:
        await world.post("/inference/v1/generate", **generate([1] * 100, 2), stream=stream)
        ms = PROFILE.prefill_ms(1, 100) + PROFILE.decode_ms(1, 101)
        assert world.now_ms() == pytest.approx(8 + ms, rel=1e-6)

    run(scenario, request_s=0.008)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_requests_that_arrive_later_join_the_batch(async_scheduling: bool) -> None:
    def mixed_ms(new: int, context: int) -> float:
        return PROFILE.iteration.ms(
            tokens=new + 1, context_tokens=context, sequences=2, pairs=pairs_of(new), mixed=True
        )

    async def scenario(world: World) -> None:
        first = asyncio.create_task(world.post("/inference/v1/generate", **generate([1] * 100, 4)))
        await asyncio.sleep((PROFILE.prefill_ms(1, 100) + 1) / 1000)
        await world.post("/inference/v1/generate", **generate([2] * 50, 3))
        assert first.done()
        # It comes during the second iteration, and joins the third or the fourth.
        ms = PROFILE.prefill_ms(1, 100) + PROFILE.decode_ms(1, 101)
        if async_scheduling:
            ms += PROFILE.decode_ms(1, 102) + mixed_ms(50, 103)
            ms += PROFILE.decode_ms(1, 51) + PROFILE.decode_ms(1, 52)
        else:
            ms += mixed_ms(50, 102) + PROFILE.decode_ms(2, (103 + 51) / 2) + PROFILE.decode_ms(1, 52)
        assert world.now_ms() == pytest.approx(ms, rel=1e-6)

    run(scenario, async_scheduling=async_scheduling)


def test_a_slow_event_loop_delays_tokens_but_not_the_schedule() -> None:
    async def scenario(world: World) -> None:
        answer = asyncio.create_task(world.post("/inference/v1/generate", **generate([1] * 100, 50)))
        await asyncio.sleep(0.1)
        asyncio.get_running_loop()._now_s += 0.2  # type: ignore[attr-defined]
        await answer
        ms = PROFILE.prefill_ms(1, 100) + sum(PROFILE.decode_ms(1, 100 + k) for k in range(1, 50))
        assert world.now_ms() == pytest.approx(ms, rel=1e-6)
        assert world.emulator.lag_s == 0

    run(scenario)


def test_a_very_late_event_loop_gives_up_and_says_by_how_much() -> None:
    async def scenario(world: World) -> None:
        answer = asyncio.create_task(world.post("/inference/v1/generate", **generate([1] * 100, 50)))
        await asyncio.sleep(0.1)
        asyncio.get_running_loop()._now_s += 5  # type: ignore[attr-defined]
        await answer
        assert world.emulator.lag_s == pytest.approx(5, abs=0.1)

    run(scenario)


def test_kv_comes_back_from_host_memory_and_newcomers_need_not_wait_for_it() -> None:
    async def scenario(world: World) -> None:
        engine = world.emulator.engine
        await world.post("/inference/v1/generate", **generate([1] * 900, 1))
        await world.post("/inference/v1/generate", **generate([2] * 1000, 1))
        start_ms = world.now_ms()
        back = asyncio.create_task(world.post("/inference/v1/generate", **generate([1] * 900, 1)))
        await world.until(lambda: engine.waiting == 1)
        assert engine.running == 0
        await world.post("/inference/v1/generate", **generate([3], 1))
        assert not back.done()
        answer = (await back).json()
        reloaded = engine.counters.reloaded_tokens
        load_ms = reloaded * PROFILE.kv_bytes_per_token / PROFILE.host_bandwidth_bytes_per_s * 1000
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= reloaded > 800
        assert world.now_ms() - start_ms >= load_ms

    run(scenario, host_kv_gib=1.0, kv_tokens=1040, context_tokens=1024, time_scale=1.0)


def test_a_fixed_engine_takes_the_same_time_for_all() -> None:
    async def scenario(world: World) -> None:
        calls = [world.post("/inference/v1/generate", **generate([i], 10)) for i in range(100)]
        answers = await asyncio.gather(*calls)
        assert world.now_ms() == pytest.approx(50, abs=0.01)
        assert all(len(a.json()["choices"][0]["token_ids"]) == 10 for a in answers)

    run(scenario, fixed_ms=50)


def test_sleeping_and_waking_take_the_times_of_the_profile() -> None:
    async def scenario(world: World) -> None:
        for level, back_s in ((1, PROFILE.swap_warm_s), (2, PROFILE.swap_reload_s)):
            start_ms = world.now_ms()
            assert (await world.post(f"/sleep?level={level}")).json() == {
                "status": "sleeping",
                "level": level,
            }
            assert (await world.http.get("/is_sleeping")).json() == {"is_sleeping": True}
            assert world.now_ms() - start_ms == pytest.approx(PROFILE.unload_s * 1000)
            start_ms = world.now_ms()
            await world.post("/wake_up?tags=weights")
            assert (await world.http.get("/is_sleeping")).json() == {"is_sleeping": True}
            await world.post("/wake_up?tags=kv_cache")
            assert (await world.http.get("/is_sleeping")).json() == {"is_sleeping": False}
            assert world.now_ms() - start_ms == pytest.approx(back_s * 1000)

    run(scenario)


def test_sleep_that_keeps_requests_continues_them_afterwards() -> None:
    async def scenario(world: World) -> None:
        whole = (await world.post("/inference/v1/generate", **generate([5], 30))).json()
        answer = asyncio.create_task(world.post("/inference/v1/generate", **generate([5], 30)))
        await asyncio.sleep(0.3)
        await world.post("/sleep?level=1&mode=keep")
        assert not answer.done()
        await world.post("/wake_up")
        assert (await answer).json()["choices"] == whole["choices"]

    run(scenario)


def test_a_completion_is_the_text_of_its_tokens() -> None:
    async def scenario(world: World) -> None:
        body: dict[str, Any] = {"model": "m", "prompt": "Once upon", "max_tokens": 20, "ignore_eos": True}
        answer = (await world.post("/v1/completions", **body, return_token_ids=True)).json()
        choice = answer["choices"][0]
        assert choice["prompt_token_ids"] == list(b"Once upon")
        assert choice["text"] == bytes(choice["token_ids"]).decode()
        assert answer["usage"]["completion_tokens"] == len(choice["token_ids"]) == 20
        ids = generate(list(b"Once upon"), 20)
        same = (await world.post("/inference/v1/generate", **ids)).json()
        assert same["choices"][0]["token_ids"] == choice["token_ids"]
        short = (await world.post("/v1/completions", prompt=[79], ignore_eos=True)).json()
        assert short["usage"]["completion_tokens"] == 16
        assert short["choices"][0]["token_ids"] is None

    run(scenario)


def test_a_streamed_completion_adds_up_to_the_whole_one() -> None:
    async def scenario(world: World) -> None:
        body: dict[str, Any] = {"prompt": [[1, 2, 3]], "max_tokens": 500, "return_token_ids": True}
        choice = (await world.post("/v1/completions", **body)).json()["choices"][0]
        events = await world.events("/v1/completions", **body, stream_options={"include_usage": True})
        *chunks, usage = events
        assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
        assert [i for c in chunks for i in c["choices"][0]["token_ids"]] == choice["token_ids"]
        assert choice["token_ids"][-1] == EOS_ID
        assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "stop"
        assert [c["choices"][0]["prompt_token_ids"] for c in chunks] == [[1, 2, 3]] + [None] * (
            len(chunks) - 1
        )
        assert usage["usage"]["completion_tokens"] == len(choice["token_ids"])

    run(scenario, mean_output_tokens=10)


def test_aborts_go_by_the_prefixed_id_and_a_waiting_completion_says_nothing() -> None:
    async def scenario(world: World) -> None:
        engine = world.emulator.engine
        running = asyncio.create_task(
            world.events("/v1/completions", prompt=[1], max_tokens=4000, ignore_eos=True, request_id="run")
        )
        await world.until(lambda: engine.running == 1)
        waiting = [
            asyncio.create_task(world.events("/v1/completions", prompt=[2], request_id="wait")),
            asyncio.create_task(
                world.events("/inference/v1/generate", **generate([3], 9), request_id="wait")
            ),
            asyncio.create_task(world.post("/v1/completions", prompt=[4], request_id="whole")),
        ]
        await world.until(lambda: engine.waiting == 3)
        wrong = ["run", "cmpl-run", "cmpl-run-1", "generate-tokens-run", "wait"]
        await world.post("/inference/v1/abort_requests", request_ids=wrong)
        assert (engine.running, engine.waiting) == (1, 3)
        await asyncio.sleep(1)
        right = ["cmpl-run-0", "cmpl-wait-0", "generate-tokens-wait", "cmpl-whole-0"]
        await world.post("/inference/v1/abort_requests", request_ids=right)
        assert (await waiting[0]) == []
        assert [e["choices"][0]["finish_reason"] for e in await waiting[1]] == ["abort"]
        assert (await waiting[2]).json()["choices"][0]["finish_reason"] == "abort"
        finishes = [e["choices"][0]["finish_reason"] for e in await running]
        assert len(finishes) > 10
        assert finishes == [None] * (len(finishes) - 1) + ["abort"]
        assert (engine.running, engine.waiting) == (0, 0)

    run(scenario, seqs_max=1)


def test_the_header_names_the_request_before_the_body_does() -> None:
    async def scenario(world: World) -> None:
        body = generate([1], 1)
        answer = await world.post(
            "/inference/v1/generate", headers={"x-request-id": "head"}, request_id="body", **body
        )
        assert answer.json()["request_id"] == "generate-tokens-head"

    run(scenario)


SAMPLING = {"max_tokens": 2}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (
            "/inference/v1/generate",
            {"token_ids": [1], "sampling_params": SAMPLING, "model": "x"},
            404,
            "model",
        ),
        ("/inference/v1/generate", {"token_ids": [1]}, 400, "sampling_params"),
        ("/inference/v1/generate", {"sampling_params": SAMPLING}, 400, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [], "sampling_params": SAMPLING}, 400, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [-1], "sampling_params": SAMPLING}, 400, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [257], "sampling_params": SAMPLING}, 400, None),
        ("/inference/v1/generate", {"token_ids": ["a"], "sampling_params": SAMPLING}, 400, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [1] * 64, "sampling_params": SAMPLING}, 400, "input_tokens"),
        ("/inference/v1/generate", generate([1], 0), 400, "max_tokens"),
        ("/inference/v1/generate", generate([1], 2, min_tokens=3), 400, "min_tokens"),
        ("/inference/v1/generate", generate([1], 2, n=2), 400, "n"),
        ("/v1/completions", {"max_tokens": 2}, 400, "prompt"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a" * 64}, 400, "input_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 65}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "model": "x"}, 404, "model"),
        ("/inference/v1/abort_requests", {}, 400, None),
        ("/sleep?level=0", {}, 400, "query.level"),
        ("/sleep?mode=wait", {}, 400, "query.mode"),
        ("/collective_rpc", {"method": "x"}, 400, "method"),
    ],
)
def test_errors_have_vllms_shape(path: str, body: dict[str, Any], status: int, param: str | None) -> None:
    async def scenario(world: World) -> None:
        answer = await world.post(path, **body)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (status, param)
        assert error["message"]

    run(scenario, context_tokens=64)


def test_what_the_engine_itself_refuses_is_an_event_of_the_stream() -> None:
    async def scenario(world: World) -> None:
        for bad in ([1] * 64, [257]):
            (event,) = await world.events("/inference/v1/generate", **generate(bad, 2))
            assert event["error"]["code"] == 400
        plain = await world.post("/inference/v1/generate", stream=True, **generate([1], 0))
        assert plain.status_code == 400

    run(scenario, context_tokens=64)


@pytest.mark.parametrize(
    ("content", "kind"), [(b"{", "application/json"), (b"[]", "application/json"), (b"{}", "text/plain")]
)
def test_a_body_that_is_no_json_object_is_refused(content: bytes, kind: str) -> None:
    async def scenario(world: World) -> None:
        answer = await world.http.post("/v1/completions", content=content, headers={"content-type": kind})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "Bad Request"

    run(scenario)


def test_the_metrics_are_those_of_the_engine() -> None:
    async def scenario(world: World) -> None:
        await world.post("/inference/v1/generate", **generate([1] * 40, 5))
        await world.post("/inference/v1/generate", **generate([1] * 40, 5))
        text = (await world.http.get("/metrics")).text
        label = '{engine="0",model_name="m"}'
        for sample in (
            "num_requests_running{} 0.0",
            "prompt_tokens_total{} 80.0",
            "generation_tokens_total{} 10.0",
            "prefix_cache_queries_total{} 80.0",
            "prefix_cache_hits_total{} 32.0",
            "num_preemptions_total{} 0.0",
        ):
            assert f"\nvllm:{sample.replace('{}', label)}\n" in "\n" + text
        assert 'kv_cache_size_tokens="512",num_gpu_blocks="32"' in text
        models = (await world.http.get("/v1/models")).json()["data"]
        assert [(m["id"], m["max_model_len"]) for m in models] == [("m", 496)]
        assert (await world.http.get("/health")).status_code == 200
        assert "0.32" in (await world.http.get("/version")).json()["version"]

    run(scenario, kv_tokens=512)


def test_virtual_time_does_not_take_real_time() -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(1000)

    start_s = time.monotonic()
    run(scenario)
    assert time.monotonic() - start_s < 100


def test_an_adapter_answers_in_its_own_way_and_shares_no_cached_block_with_its_base() -> None:
    async def scenario(world: World) -> None:
        listed = (await world.http.get("/v1/models")).json()["data"]
        assert {each["id"]: each["parent"] for each in listed} == {"m": None, "poet": "m", "clerk": "m"}
        sampling = {"max_tokens": 8, "ignore_eos": True}
        body: dict[str, Any] = {
            "token_ids": [7] * 64,
            "sampling_params": sampling,
            "stream_options": {"include_usage": True},
        }
        answers, cached = [], []
        for model in ("m", "poet", "clerk", "poet", "m"):
            *events, usage = await world.events("/inference/v1/generate", model=model, **body)
            answers.append([one for each in events for one in each["choices"][0]["token_ids"]])
            cached.append(usage["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert answers[0] == answers[4]
        assert answers[1] == answers[3]
        assert len({*map(tuple, answers)}) == 3
        assert [bool(each) for each in cached] == [False, False, False, True, True]
        unknown = await world.post("/inference/v1/generate", model="nobody", **body)
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")

    run(scenario, adapters=("poet", "clerk"))


def test_a_prompt_that_begins_like_the_name_of_an_adapter_is_not_taken_for_one() -> None:
    name = "sixteen-letters!"
    prompt = list(range(100, 132))
    assert not set(digests([*name.encode(), *prompt], 16)) & set(digests(prompt, 16, name))
    assert digests(prompt, 16, name) == digests(prompt, 16, name) != digests(prompt, 16)
