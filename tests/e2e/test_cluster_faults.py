"""A whole cluster under mixed load while its servers, its parts and its engines are killed or stopped.

Two instances, one with an engine that its agent starts and one attached to a running one, a gateway and a
controller over a RabbitMQ and a Redis of their own. Emulated tokens are a hash of all ids before them, so a
text that equals its reference was neither cut, repeated nor spliced.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from qlm.agents.engines.guard import descendants, start_ticks
from support import rabbitmq as rabbitmq_support
from support import redis as redis_support
from support.cluster import Cluster, cluster
from support.cluster_load import MODEL, OVER_S, PLACES, PROMPTS, Load, body, depths, reference, until
from support.doctor import faults
from support.emulated_engine import engine_command
from support.needs import need
from support.ports import free_port
from support.process import ServerProcess
from support.qlm_process import QlmProcess
from support.rabbitmq import RabbitMQ, running_rabbitmq
from support.redis import RedisServer, running_redis

pytestmark = pytest.mark.servers

LAUNCHED, ATTACHED = "launched", "attached"

STUCK_S = 40.0
"""A cluster that answers nobody for so long does not recover; how fast it does is noted, not tested."""


@dataclass(slots=True, kw_only=True)
class Rig:
    """The cluster with what a test may break, and what each prompt is answered with."""

    parts: Cluster
    rabbitmq: RabbitMQ
    redis: RedisServer
    engine: ServerProcess
    expected: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.parts.url


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    need(rabbitmq_support.missing() or redis_support.missing())
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="qlm-faults-") as folder,
        running_rabbitmq() as rabbitmq,
        running_redis(appendonly=True) as redis,
    ):
        command = engine_command(port, MODEL, seqs_max=PLACES)
        engine = ServerProcess("engine", command, env=os.environ, folder=Path(folder))
        engine.start()
        try:
            with cluster(rabbitmq, redis, config(f"http://127.0.0.1:{port}"), name=None) as parts:
                made = Rig(parts=parts, rabbitmq=rabbitmq, redis=redis, engine=engine)
                made.expected = [reference(made.url, n) for n in range(PROMPTS)]
                yield made
        finally:
            engine.kill()


def config(engine_url: str) -> dict[str, Any]:
    shared = {"accelerator": "A100", "models": [MODEL], "seqs_max": PLACES}
    return {
        "models": [{"id": MODEL, "profile": "mistral-7b", "context_tokens": 4096}],
        "instances": [{"id": LAUNCHED, **shared}, {"id": ATTACHED, **shared, "url": engine_url}],
        "emulate": {"time_scale": 1.0},
    }


@pytest.fixture
async def clients(rig: Rig) -> AsyncIterator[Load]:
    """Make the cluster whole; the clients have not begun."""
    # A connection is used once: the gateway closes idle ones, perhaps just when they are used again.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=rig.url, timeout=OVER_S + 10, limits=limits) as client:
        made = Load(rig.parts, rig.rabbitmq, rig.expected, client)

        async def whole() -> bool:
            return [bool(each["active_model"]) for each in await made.listed("instances")] == [True, True]

        await until(whole, "both engines are up")
        yield made


@pytest.fixture
async def load(clients: Load) -> Load:
    """Make the cluster whole and busy; afterwards nothing may be left of the load."""
    await clients.begin()
    await clients.busy()
    return clients


async def check_all_answered(load: Load, *, may_lose_output: bool = False) -> None:
    """Every client got exactly its answer, once, and nothing is left in queues or instances."""
    expected = load.expected
    for stream in load.streams:
        offsets = [offset for _, offset, _ in stream.parts]
        assert offsets == sorted(offsets)
        if may_lose_output and stream.finish == "output_lost":
            assert expected[stream.n % PROMPTS].startswith(stream.text)
        else:
            assert (stream.finish, stream.text) == ("length", expected[stream.n % PROMPTS])
    for n, task in enumerate(load.plain):
        answer = task.result()
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == expected[n % PROMPTS]
    for id, n in load.ids.items():
        record = load.records[id]
        assert record["outcome"] == "length", record
        assert record["response"]["choices"][0]["text"] == expected[n % PROMPTS]
    assert not load.not_found, "an accepted request was said not to exist"
    for each in await load.listed("requests"):
        if each["id"] in load.ids:
            assert [event["what"] for event in each["events"]].count("ended") == 1, each["events"]
    await until(lambda: not any(depths(load.rabbitmq.url).values()), "the queues are empty")


async def probe_s(load: Load, since: float) -> float:
    """Ask for a short answer until it comes; return how long after `since` that was."""
    urgent = body(1, max_tokens=4, slo={"ttft_ms": 500})
    while True:
        answer = await load.client.post("/v1/completions", json=urgent)
        took_s = time.monotonic() - since
        assert took_s < STUCK_S, answer.text
        if answer.status_code == 200:
            assert load.expected[1].startswith(answer.json()["choices"][0]["text"])
            return took_s
        assert answer.status_code == 503, answer.text
        await asyncio.sleep(float(answer.headers["retry-after"]))


async def check_recovery(
    load: Load, repaired: float, note: Callable[[str, object], None], *, may_lose_output: bool = False
) -> None:
    """After a fault: a new request is answered soon, and everything accepted before ends."""
    probe = await probe_s(load, repaired)
    await load.end()
    ended_s = time.monotonic() - repaired
    figures = {"silence_s": load.silence_s(repaired), "new_request_s": probe, "all_ended_s": ended_s}
    for name, value in figures.items():
        note(name, round(value, 2))
    print({name: round(value, 2) for name, value in figures.items()})
    await check_all_answered(load, may_lose_output=may_lose_output)


Note = Callable[[str, object], None]


async def test_a_killed_redis_that_comes_back_after_5_s_costs_no_answer(
    rig: Rig, load: Load, record_property: Note
) -> None:
    rig.redis.kill()
    await asyncio.sleep(5)  # the outage itself: longer than an instance may be silent
    rig.redis.start()
    await check_recovery(load, time.monotonic(), record_property)


async def test_requests_accepted_while_redis_is_away_are_known_and_served_once_it_is_back(
    rig: Rig, load: Load, record_property: Note
) -> None:
    rig.redis.kill()
    for n in range(6):
        await load.submit(n)
    rig.redis.start()
    await check_recovery(load, time.monotonic(), record_property)


async def test_an_emptied_redis_fills_again_and_no_answer_is_spliced(
    rig: Rig, load: Load, record_property: Note
) -> None:
    load.empty(rig.redis)
    await check_recovery(load, time.monotonic(), record_property, may_lose_output=True)


async def test_an_emptied_redis_and_a_killed_agent_at_once_lose_no_request(
    rig: Rig, load: Load, record_property: Note
) -> None:
    rig.parts.agents[LAUNCHED].kill()
    load.empty(rig.redis)
    rig.parts.agents[LAUNCHED].start()
    await check_recovery(load, time.monotonic(), record_property, may_lose_output=True)


async def test_a_killed_rabbitmq_that_comes_back_costs_no_answer(
    rig: Rig, load: Load, record_property: Note
) -> None:
    await asyncio.to_thread(rig.rabbitmq.sync_declarations)
    before = lines(rig, "the broker is away"), lines(rig, "the broker is back")
    rig.rabbitmq.kill()
    await asyncio.to_thread(rig.rabbitmq.start)
    await check_recovery(load, time.monotonic(), record_property)
    away = lines(rig, "the broker is away") - before[0]
    assert away == Counter(each.name for each in running(rig)), "each process says so once"
    await until(lambda: lines(rig, "the broker is back") - before[1] == away, "each says so once more")


def lines(rig: Rig, part: str) -> Counter[str]:
    """Count the lines with `part` in the log of each process that runs."""
    return Counter({each.name: each.log().count(part) for each in running(rig)})


def running(rig: Rig) -> list[QlmProcess]:
    return [each for each in rig.parts.processes if each is not rig.parts.standby]


async def test_doctor_names_the_server_that_is_away_with_what_to_do(rig: Rig, clients: Load) -> None:
    for server, part, name in ((rig.redis, "store", "Redis"), (rig.rabbitmq, "broker", "RabbitMQ")):
        server.kill()

        async def is_named(part: str = part) -> bool:
            return part in await asyncio.to_thread(faults, rig.parts.admin_url)

        await until(is_named, f"doctor finds {name} away")
        found = await asyncio.to_thread(faults, rig.parts.admin_url)
        assert "gateway" not in found
        assert f"start {name} again" in found[part].remedy
        await asyncio.to_thread(server.start)


async def test_a_killed_controller_is_missed_by_nobody_once_it_is_back(
    rig: Rig, load: Load, record_property: Note
) -> None:
    rig.parts.controller.kill()
    for n in range(6):
        await load.submit(n)
    rig.parts.controller.start()
    await check_recovery(load, time.monotonic(), record_property)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_leader_that_dies_or_sleeps_is_replaced_by_the_controller_that_stands_by(
    rig: Rig, load: Load, record_property: Note, fault: signal.Signals
) -> None:
    """Under arrivals that go on. One that wakes up stands by then; and one that is stopped hands over."""
    controller, standby = rig.parts.controller, rig.parts.standby
    first = await leader(load)
    standby.start()
    try:
        await until(lambda: f"{first['id']}; this one is a standby" in standby.log(), "the second stands by")
        async with arriving(load):
            hit, hit_ms = time.monotonic(), time.time() * 1000
            os.kill(controller.pid, fault)
            second = await replaced(load, first)
            figure = round(time.monotonic() - hit, 2)
            record_property("takeover_s", figure)
            print({"takeover_s": figure})
            await probe_s(load, hit)
        if fault is signal.SIGSTOP:
            os.kill(controller.pid, signal.SIGCONT)
        else:
            controller.kill()
            controller.start()
        await check_recovery(load, hit, record_property)
        await until(lambda: f"{second['id']}; this one is a standby" in controller.log(), "it stands by")
        assert (await load.client.get(f"{load.admin_url}/admin/v1/plan")).json()["at_ms"] > hit_ms
        assert await leader(load) == second
    finally:
        standby.terminate()
    await replaced(load, second)
    await probe_s(load, time.monotonic())


@asynccontextmanager
async def arriving(load: Load) -> AsyncIterator[None]:
    """Let requests arrive, up to twenty a second, one after the other."""
    over = asyncio.Event()

    async def submit() -> None:
        for n in count():
            if over.is_set():
                return
            await load.submit(n)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(submit())
    try:
        yield
    finally:
        over.set()
        await task


async def leader(load: Load) -> dict[str, Any]:
    """The controller that leads."""
    reported: list[dict[str, Any]] = []

    async def there_is_one() -> bool:
        answer = await load.client.get(f"{load.admin_url}/admin/v1/controller")
        reported[:] = [answer.raise_for_status().json()["leader"]]
        return reported[0] is not None

    await until(there_is_one, "a controller leads")
    return reported[0]


async def replaced(load: Load, former: dict[str, Any]) -> dict[str, Any]:
    """Whoever leads after the former one, under a larger term."""
    reported = former

    async def is_another() -> bool:
        nonlocal reported
        reported = await leader(load)
        return bool(reported["id"] != former["id"])

    await until(is_another, "another controller leads")
    assert (reported["incarnation"], reported["term"]) > (former["incarnation"], former["term"])
    return reported


async def test_an_agent_that_was_stopped_for_8_s_takes_nothing_with_it(
    rig: Rig, load: Load, record_property: Note
) -> None:
    agent = rig.parts.agents[LAUNCHED]
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(8)  # the fault itself: long enough to be taken for dead
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    await check_recovery(load, time.monotonic(), record_property)


async def test_a_killed_engine_process_is_started_again_and_its_requests_go_on(
    rig: Rig, load: Load, record_property: Note
) -> None:
    _guard, engine = descendants(rig.parts.agents[LAUNCHED].pid)
    os.kill(engine, signal.SIGKILL)
    await check_recovery(load, time.monotonic(), record_property)


async def test_an_engine_that_hangs_is_replaced_and_its_agent_goes_on_by_itself(
    rig: Rig, clients: Load, record_property: Note
) -> None:
    """SIGSTOP for longer than the watchdog and the health probes allow; then SIGCONT.

    Streams are under way, and requests that arrive meanwhile are sent on connections that are kept open.
    """
    load = clients
    await load.begin(streams=PLACES, plain=0, detached=0)
    await until(lambda: all(len(each.parts) >= 5 for each in load.streams), "all streams show tokens")
    short = [load.client.post("/v1/completions", json=body(n, max_tokens=2)) for n in range(PLACES)]
    assert {answer.status_code for answer in await asyncio.gather(*short)} == {200}
    agent = rig.parts.agents[LAUNCHED]
    _guard, engine = descendants(agent.pid)
    log_bytes, started = agent.log_file.stat().st_size, start_ticks(engine)
    hit = time.monotonic()
    os.kill(engine, signal.SIGSTOP)
    try:
        for n in range(24):
            await load.submit(n)
        await until(lambda: start_ticks(engine) != started, "the agent gives its engine up")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)
    record_property("given_up_s", round(time.monotonic() - hit, 2))
    await check_recovery(load, time.monotonic(), record_property)

    async def serves() -> bool:
        (one,) = [each for each in await load.listed("instances") if each["id"] == LAUNCHED]
        return bool(one["active_model"])

    await until(serves, "its instance serves again")
    said = agent.log_file.read_bytes()[log_bytes:].decode()
    assert "it stands still" in said or "health probes" in said
    assert "agent failed" not in said
    assert "a new one starts" not in said


async def test_an_attached_engine_that_dies_for_good_fails_nothing_while_another_serves(
    rig: Rig, load: Load, record_property: Note
) -> None:
    rig.engine.kill()
    try:
        await check_recovery(load, time.monotonic(), record_property)
        assert not [each for each in await load.listed("requests") if each["outcome"] == "failed"]
    finally:
        rig.engine.start()
