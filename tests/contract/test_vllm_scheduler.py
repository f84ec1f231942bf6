"""QLM's scheduler inside a real vLLM 0.32: float32, greedy, one engine for all tests of a way to schedule."""

import asyncio
import json
import random
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import pytest

from qlm.agents.batching.sent_objective import Objective
from qlm.agents.engines.scheduler_path import scheduler_path
from qlm.agents.vllm_offloading.settings import offloading
from qlm.agents.vllm_scheduler.settings import SCHEDULER_CLASS, VARIABLE, SchedulerSettings
from qlm.cli.config.settings import parse_config
from qlm.cli.runtime.engines import model_host
from qlm.cli.runtime.wiring import load_profiles
from qlm.domain.ids import ModelId
from qlm.domain.ports.engine import CallObjective, EngineCall
from qlm.domain.sampling import Sampling
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline
from support import vllm_cpu
from support.batch_policies import FCFS, HOLD_FIRST, RANDOM, REPORT_VARIABLE, ROTATION
from support.needs import need
from support.vllm_cpu import VllmOptions, VllmServer, running_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

TESTS: Final = Path(__file__).resolve().parents[1]
KV_BYTES: Final = 4 * 2**20
"""32 blocks of 32 tokens, of which one is vLLM's own."""


@dataclass(frozen=True, slots=True)
class Engine:
    server: VllmServer
    report: Path
    asynchronous: bool

    def counts(self) -> dict[str, int]:
        return dict(json.loads(self.report.read_text())) if self.report.exists() else {}


@dataclass(slots=True)
class Answer:
    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    finish: str | None = None


IDLE: Final = {
    "kv_connector": "IdleConnector",
    "kv_connector_module_path": "support.idle_connector",
    "kv_role": "kv_both",
}
CONNECTED: Final = offloading(64 * 2**20) if vllm_cpu.GPU else json.dumps(IDLE)
"""KV in host memory is for GPUs only. vLLM schedules for the idle connector as it does for that."""

MODES: Final[dict[str, tuple[str, ...]]] = {
    "synchronous": ("--no-async-scheduling",),
    "asynchronous": (),
    "connected": ("--kv-transfer-config", CONNECTED),
}
"""How the engine schedules, and its arguments for that. The last is asynchronous, with a KV connector."""


@pytest.fixture(scope="module", params=MODES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    need(vllm_cpu.missing())
    folder = tmp_path_factory.mktemp("scheduler")
    report = folder / "report.json"
    settings = SchedulerSettings(batching="support.batch_policies:ByRank")
    options = VllmOptions(
        max_model_len=960,
        max_num_seqs=32,
        kv_cache_bytes=KV_BYTES,
        asynchronous=True,
        extra_args=("--scheduler-cls", SCHEDULER_CLASS, *MODES[request.param]),
        pythonpath=(str(scheduler_path(folder)), str(TESTS)),
        env=((VARIABLE, settings.text()), (REPORT_VARIABLE, str(report))),
    )
    with running_vllm(options) as server:
        yield Engine(server, report, asynchronous=request.param != "synchronous")


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


def prompts(number: int, tokens: int) -> list[list[int]]:
    rng = random.Random(number * tokens)
    return [[rng.randrange(10, 1990) for _ in range(tokens)] for _ in range(number)]


async def generate(
    client: aiohttp.ClientSession,
    server: VllmServer,
    id: str,
    prompt: list[int],
    tokens: int,
    extra_args: dict[str, Any] | None = None,
    answer: Answer | None = None,
) -> Answer:
    """Stream an answer; `answer` fills while it comes."""
    answer = answer or Answer()
    params = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "extra_args": extra_args}
    body = {"request_id": id, "token_ids": prompt, "stream": True, "sampling_params": params}
    async with client.post(f"{server.base_url}/inference/v1/generate", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                for choice in orjson.loads(line[6:])["choices"]:
                    answer.token_ids += choice["token_ids"] or []
                    answer.times_s += [asyncio.get_running_loop().time()] * len(choice["token_ids"] or [])
                    answer.finish = choice["finish_reason"] or answer.finish
    return answer


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def gauges(client: aiohttp.ClientSession, server: VllmServer) -> dict[str, float]:
    async with client.get(f"{server.base_url}/metrics") as response:
        lines = (await response.text()).splitlines()
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
    return {
        name: float(line.rsplit(" ", 1)[1])
        for name in names
        for line in lines
        if line.startswith(f"vllm:{name}{{")
    }


async def test_200_preemptions_and_200_holds_change_no_token(
    engine: Engine, vllm_server: VllmServer, client: aiohttp.ClientSession
) -> None:
    """Until both are reached, by rounds of eight; each round is compared whole."""
    number, tokens = 8, 100
    asked = prompts(number, 24)
    plain = [await generate(client, vllm_server, f"plain-{n}", p, tokens) for n, p in enumerate(asked)]
    extra = Objective(rank=RANDOM).extra_args()
    for turn in range(12):
        got = await asyncio.gather(
            *(
                generate(client, engine.server, f"random-{turn}-{n}", p, tokens, extra)
                for n, p in enumerate(asked)
            )
        )
        assert [each.token_ids for each in got] == [each.token_ids for each in plain]
        counts = engine.counts()
        if min(counts["preempted"], counts["held"]) >= 200:
            break
    assert min(counts["preempted"], counts["held"]) >= 200, counts
    assert counts["moved"] == 0, "a held request got a token"
    assert (counts["in_flight"] > 0) == engine.asynchronous, counts
    assert (await gauges(client, engine.server))["num_preemptions_total"] >= counts["preempted"]


async def test_aborts_of_held_and_parked_requests_end_them_and_free_their_blocks(
    engine: Engine, client: aiohttp.ClientSession
) -> None:
    first, second = prompts(2, 70)
    extra = Objective(rank=HOLD_FIRST).extra_args()
    first_answer, second_answer = Answer(), Answer()
    running = [
        asyncio.ensure_future(generate(client, engine.server, "held", first, 500, extra, first_answer))
    ]
    await until(lambda: bool(first_answer.token_ids))
    running.append(
        asyncio.ensure_future(generate(client, engine.server, "parked", second, 500, extra, second_answer))
    )
    while (await gauges(client, engine.server))["num_requests_waiting"] != 1:
        pass
    before = len(first_answer.token_ids)
    ids = [f"generate-tokens-{name}" for name in ("held", "parked")]
    url = f"{engine.server.base_url}/inference/v1/abort_requests"
    async with client.post(url, json={"request_ids": ids}) as response:
        assert response.status == 200
    async with asyncio.timeout(20):
        ended = await asyncio.gather(*running)
    assert [each.finish for each in ended] == ["abort", "abort"]
    assert len(first_answer.token_ids) == before <= 3
    assert second_answer.token_ids == []
    # The gauges are written with the next iteration.
    assert (await generate(client, engine.server, "after", second, 4)).finish == "length"
    after = await gauges(client, engine.server)
    assert (after["num_requests_running"], after["num_requests_waiting"]) == (0, 0)
    assert after["kv_cache_usage_perc"] == 0


@pytest.mark.parametrize(
    "extra_args",
    [
        {"qlm": {"version": 1, "rate": "fast", "ttft_s": 1}},
        {"qlm": {"version": 2}},
        {"qlm": [1, 2]},
        {"another": True},
    ],
    ids=["pace", "version", "kind", "other-key"],
)
async def test_a_malformed_objective_is_served_without_one(
    engine: Engine, client: aiohttp.ClientSession, extra_args: dict[str, Any]
) -> None:
    answers = [
        await generate(client, engine.server, f"malformed-{n}", [5, 6, 7, 8, 9, 10], 8, extra_args)
        for n in range(2)
    ]
    assert [each.finish for each in answers] == ["length", "length"]
    if "qlm" in extra_args:
        path = {"pace": "rate"}
        log = engine.server.process.log_file.read_text()
        lines = [line for line in log.splitlines() if "served without objective" in line]
        assert lines, "it is logged"
        assert len(lines) <= 3, path


@dataclass(frozen=True, slots=True)
class Burst:
    """Sixteen answers asked for at once, four times what the KV cache has room for."""

    answers: list[Answer]
    began_s: float

    @property
    def takes_s(self) -> float:
        return max(each.times_s[-1] for each in self.answers) - self.began_s

    def mean_idle_s(self, reader: Reader) -> float:
        return statistics.mean(self._idle_s(each, reader) for each in self.answers)

    def _idle_s(self, answer: Answer, reader: Reader) -> float:
        timeline = Timeline(reader)
        for at_s in answer.times_s:
            timeline.deliver(1, at_s - self.began_s)
        return timeline.late_s


BURST: Final = 16
BURST_TOKENS: Final = 96


async def burst(client: aiohttp.ClientSession, server: VllmServer, name: str, objective: Objective) -> Burst:
    began_s = asyncio.get_running_loop().time()
    got = await asyncio.gather(
        *(
            generate(client, server, f"{name}-{n}", prompt, BURST_TOKENS, objective.extra_args())
            for n, prompt in enumerate(prompts(BURST, 190))
        )
    )
    assert [len(each.token_ids) for each in got] == [BURST_TOKENS] * BURST
    return Burst(got, began_s)


@pytest.mark.alone
@pytest.mark.parametrize("engine", MODES if vllm_cpu.GPU else ["synchronous"], indirect=True)
async def test_in_a_burst_rotation_reduces_the_idle_time_of_first_come_first_served(
    engine: Engine, client: aiohttp.ClientSession
) -> None:
    """The readers together take a third of what the engine computes, however fast this machine is."""
    alone = await burst(client, engine.server, "pace", Objective(rank=FCFS))
    reader = Reader(ttft_s=alone.takes_s / 16, tokens_per_s=0.3 * BURST_TOKENS / alone.takes_s)
    objective = Objective(ttft_s=reader.ttft_s, rate=reader.tokens_per_s)
    pairs = []
    for turn in range(3):
        fcfs = await burst(client, engine.server, f"fcfs-{turn}", objective._replace(rank=FCFS))
        rotation = await burst(client, engine.server, f"rotation-{turn}", objective._replace(rank=ROTATION))
        pairs.append((fcfs.mean_idle_s(reader), rotation.mean_idle_s(reader)))
    print(f"alone {alone.takes_s:.1f} s; mean idle of pairs (fcfs, rotation), seconds:", pairs)
    # Together: on two cores, whatever else runs there can spoil one pair.
    assert sum(rotation_s for _, rotation_s in pairs) < 0.8 * sum(fcfs_s for fcfs_s, _ in pairs), pairs


@pytest.mark.parametrize("version", ["0.31.4", "0.33.0", "1.0"])
def test_another_version_of_vllm_is_refused_by_its_name(version: str, tmp_path: Path) -> None:
    need(vllm_cpu.missing())
    program = (
        f"import vllm; vllm.__version__ = {version!r}\n"
        "from importlib import import_module\n"
        f"import_module({SCHEDULER_CLASS.rpartition('.')[0]!r})"
    )
    ran = subprocess.run(
        [vllm_cpu.PYTHON, "-c", program],
        env={"PYTHONPATH": str(scheduler_path(tmp_path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert (
        f"vLLM {version} cannot run QLM's scheduler, which is written for vLLM 0.32.x only"
        in (ran.stderr.splitlines()[-1])
    )


async def test_a_launched_engine_runs_the_policy_of_its_instance(tmp_path: Path) -> None:
    """As an agent starts it: the plain `vllm serve`, with links for imports and objectives by the call."""
    need(vllm_cpu.missing())
    model = {"id": "tiny", "engine": "vllm", "path": str(vllm_cpu.tiny_model()), "context_tokens": 960}
    instance = {"id": "c", "accelerator": "CPU", "models": ["tiny"], "batching": "fcfs", "seqs_max": 4}
    config = parse_config(
        {
            "models": [model],
            "instances": [instance],
            "vllm": {
                "python": str(vllm_cpu.PYTHON), "dtype": "float32", "block_tokens": 32,
                "kv_cache_bytes": KV_BYTES, "extra_args": ["--enforce-eager"] if vllm_cpu.GPU else [],
                **({} if vllm_cpu.GPU else {"cpu": True, "pythonpath": str(vllm_cpu.SCRIPTS)}),
            },
            "data_dir": str(tmp_path),
        },
        "test",
    )  # fmt: skip
    host = model_host(config, config.instances[0], load_profiles(()))
    try:
        changed = await host.swap(ModelId("tiny"))
        assert not changed.error
        engine = host.engine()
        assert engine is not None
        objective = CallObjective(arrival_ns=time.time_ns(), ttft_s=1.0, tokens_per_s=4.8)
        call = EngineCall(
            call_id="a", prompt_ids=(5, 6, 7, 8, 9, 10), sampling=Sampling(max_tokens=4, ignore_eos=True),
            objective=objective,
        )  # fmt: skip
        chunks = [chunk async for chunk in engine.generate(call)]
        assert sum(len(chunk.token_ids) for chunk in chunks) == 4
    finally:
        await host.close()
    log = (tmp_path / "logs" / "c-tiny.log").read_text()
    assert "QLM's scheduler runs the batch policy fcfs" in log
    assert "served without objective" not in log
