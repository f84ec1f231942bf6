"""What a process tells of itself: metrics as promtool wants them, from backends at work."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest

from qlm.agents.core.agent import Agent
from qlm.agents.core.events import EngineChanged, Tick
from qlm.agents.core.state import AgentSettings
from qlm.cli.config.observability import MonitorConfig
from qlm.cli.runtime import health
from qlm.cli.runtime.backends import Backends
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.health import OK, Health
from qlm.cli.runtime.monitor import NoPortError, monitor
from qlm.cli.runtime.telemetry import Telemetry, readiness_of
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.fleet import EngineState
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.metric_labels import OTHER, ClassLabels
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.published import PublishedKind
from qlm.gateway.core.access import AccessRules
from qlm.store.embedded.memory import MemoryStore
from support.agent_bench import HOLDER, Bench, N
from support.exposition import problems, value
from support.flaky import Faults, flaky, until
from support.plant import M, plant
from support.ports import free_port
from support.requests import a_request


def shown(telemetry: Telemetry) -> str:
    return generate_latest(telemetry.registry).decode()


def _shown(telemetry: Telemetry, name: str, instance: str) -> float | None:
    """A metric of an instance; None while it is not printed."""
    with contextlib.suppress(KeyError):
        return value(shown(telemetry), name, qlm_instance=instance)
    return None


@pytest.fixture
def telemetry() -> Telemetry:
    """Of a process with a controller and agents."""
    return Telemetry(SystemClock(), controller=True, agents=True)


async def test_a_controller_and_an_agent_at_work_tell_what_they_did(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    async with plant(tmp_path, telemetry=telemetry) as it:
        now_ns = SystemClock().now_ns()
        requests = [a_request(f"r{n}", deadline_ms=60_000.0, arrival_ns=now_ns) for n in range(3)]
        await it.accept(*requests)
        await it.all_end_exactly_once()
        text = shown(telemetry)
    assert problems(text) == []
    mine = {"qlm_instance": "i"}
    waited = "qlm_agent_request_queue_duration_seconds"
    assert value(text, f"{waited}_count", model="m", slo_class=requests[0].cls.slo, **mine) == 3
    assert 0 <= value(text, f"{waited}_sum", **mine) < 60
    assert value(text, "qlm_operations_total", operation="pull", **mine) == 3
    assert value(text, "qlm_agent_generations_ended_total", **mine) == 3
    assert value(text, "qlm_agent_engine_state", model="m", state="awake", **mine) == 1
    assert value(text, "qlm_agent_engine_state", model="m", **mine) == 1, "a model is in one state"
    assert value(text, "qlm_controller_leader") == 1
    assert value(text, "qlm_controller_plan_duration_seconds_count") > 0
    assert value(text, "qlm_controller_recommended_instances", accelerator="A10") == 1


async def test_what_waits_and_runs_is_shown_by_the_controller_that_leads(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    assert telemetry.controller is not None
    async with plant(tmp_path, telemetry=telemetry) as it:
        it.engines[M].tokens_max = 0
        await it.accept(*(a_request(f"r{n}", deadline_ms=60_000.0) for n in range(2)))
        await until(lambda: _shown(telemetry, "qlm_controller_leases", "i") == 2)
        await until(lambda: _shown(telemetry, "qlm_agent_running_requests", "i") == 2)
        text = shown(telemetry)
        assert value(text, "qlm_agent_held_leases") == 2
        assert 0 < value(text, "qlm_agent_batch_usage_ratio") <= 1
        saturation = "qlm_controller_pool_saturation_ratio"  # as of the latest heartbeat
        await until(lambda: 0 < value(shown(telemetry), saturation, accelerator="A10") <= 1)
        telemetry.controller.stood_by()
        text = generate_latest(telemetry.registry).decode()
        assert value(text, "qlm_controller_leader") == 0
        with pytest.raises(KeyError):
            value(text, "qlm_controller_leases")
        it.engines[M].tokens_max = 1000
        await it.all_end_exactly_once()


async def test_accelerators_without_a_live_instance_are_shown_of(tmp_path: Path) -> None:
    telemetry = Telemetry(SystemClock(), controller=True, agents=True, accelerators=("A10", "A100x2"))
    async with plant(tmp_path, telemetry=telemetry) as it:
        await it.accept(a_request())
        await it.all_end_exactly_once()
        live = "qlm_controller_live_instances"
        assert value(shown(telemetry), live, accelerator="A10") == 1
        assert value(shown(telemetry), live, accelerator="A100x2") == 0


def test_objectives_beyond_the_limit_share_a_label() -> None:
    labels = ClassLabels(classes_max=2)
    asked = [RequestClass(ModelId("m"), f"deadline-{n}s") for n in (1, 2, 3, 4, 1)]
    printed = [labels.of(cls)[1] for cls in asked]
    assert printed == ["deadline-1s", "deadline-2s", OTHER, OTHER, "deadline-1s"]


def test_an_agent_is_not_ready_until_its_first_engine_is_up() -> None:
    telemetry = Telemetry(SystemClock(), controller=False, agents=True, instances=["i"])
    assert telemetry.readiness() == {"i": "its agent is starting"}
    agent = Agent(HOLDER, "A10", (M, N), AgentSettings())

    def after(event: Tick | EngineChanged) -> str:
        agent.receive(event, 1_000_000_000)
        return telemetry.readiness()["i"]

    with telemetry.agent(agent):
        assert after(Tick()) == "its first engine is starting"
        assert after(EngineChanged(model=M, state=EngineState.FAILED, error="no memory")) == "m: no memory"
        assert after(EngineChanged(model=M, state=EngineState.AWAKE)) == OK
        agent.state.engines.begin_swap(N)
        assert telemetry.readiness() == {"i": OK}, "a later model swap is daily work"


def test_an_agent_is_not_ready_while_its_engines_have_failed_and_none_comes_up() -> None:
    agent = Bench().agent
    assert readiness_of(agent) == OK
    agent.state.engines.active = None
    agent.state.engines.states[M], agent.state.engines.errors[M] = EngineState.FAILED, "out of memory"
    assert readiness_of(agent) == "m: out of memory"
    agent.state.engines.swapping_to = M
    assert readiness_of(agent) == OK


class Away:
    """A broker and a store that can be away."""

    def __init__(self) -> None:
        self.broker_faults, self.store_faults = Faults(), Faults()
        self.telemetry = Telemetry(SystemClock(), controller=False, agents=False)
        self.health: Health = self.telemetry.health
        self.broker: Broker
        self.opened = 0

    async def open_broker(self) -> Broker:
        self.opened += 1
        await asyncio.sleep(0)  # connecting takes a while, in which others may ask
        return self.broker


@contextlib.asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[Away, Backends]]:
    async with plant(folder) as it:
        world = Away()
        world.broker = flaky(it.broker, world.broker_faults)
        store = flaky(MemoryStore(SystemClock()), world.store_faults)
        async with world.health.watching(Backends(store, world.open_broker, embedded=True)) as backends:
            yield world, backends


async def test_broker_and_store_are_shown_to_be_up_or_down_and_failed_calls_counted(tmp_path: Path) -> None:
    async with watched(tmp_path) as (world, backends):
        assert (await world.health.probe()).broker == OK
        assert value(shown(world.telemetry), "qlm_store_up") == 1
        broker = await backends.open_broker()
        world.broker_faults.fail(BrokerUnavailableError("the broker is away"), "probe", "depth")
        world.store_faults.fail(StoreUnavailableError("the store is away"), "probe", "view")
        with pytest.raises(StoreUnavailableError):
            await backends.store.view()
        with pytest.raises(BrokerUnavailableError):
            await broker.depth(a_request().cls.queue)
        vitals = await world.health.probe()
        assert (vitals.broker, vitals.store) == ("the broker is away", "the store is away")
        text = shown(world.telemetry)
        assert problems(text) == []
        assert value(text, "qlm_broker_up") == value(text, "qlm_store_up") == 0
        assert value(text, "qlm_store_errors_total", operation="view") == 1
        assert value(text, "qlm_broker_errors_total", operation="depth") == 1, "a look is no call of a part"


async def test_a_probe_that_meets_a_bug_finds_the_server_down_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBE_S", 0.01)
    async with watched(tmp_path) as (world, _):
        world.store_faults.fail(ZeroDivisionError("a bug"), "probe")
        await until(lambda: world.store_faults.raised["probe"] > 2)
        text = shown(world.telemetry)
        assert (value(text, "qlm_store_up"), value(text, "qlm_broker_up")) == (0, 1)
        assert value(text, "qlm_faults_total", kind="bug") > 1
        world.store_faults.heal()
        await until(lambda: value(shown(world.telemetry), "qlm_store_up") == 1)


async def test_renamed_store_calls_keep_their_label(tmp_path: Path) -> None:
    labels = {
        "acquire_leadership": "lead",
        "expire_leases": "reap",
        "queue_position": "queue_place",
        "report_unplaced": "say_unplaced",
    }
    async with watched(tmp_path) as (world, backends):
        world.store_faults.fail(StoreUnavailableError("the store is away"), *labels)
        for name in labels:
            with pytest.raises(StoreUnavailableError):
                await getattr(backends.store, name)()
        published = {
            "publish_clusters": "publish_clusters",
            "publish_history": "keep_history",
            "publish_plan": "keep_plan",
            "publish_signal": "keep_signal",
            "published_clusters": "published_clusters",
            "published_history": "history",
            "published_plan": "kept_plan",
            "published_signal": "kept_signal",
        }
        world.store_faults.fail(StoreUnavailableError("the store is away"), *published)
        for kind in PublishedKind:
            with pytest.raises(StoreUnavailableError):
                await backends.store.publish(kind, b"")
            with pytest.raises(StoreUnavailableError):
                await backends.store.published(kind)
        text = shown(world.telemetry)
        for label in (*labels.values(), *published.values()):
            assert value(text, "qlm_store_errors_total", operation=label) == 1


async def test_two_who_ask_at_once_open_one_connection(tmp_path: Path) -> None:
    async with watched(tmp_path) as (world, _backends):
        looks = await asyncio.gather(*(world.health.probe() for _ in range(3)))
        assert [each.broker for each in looks] == [OK] * 3
        assert world.opened == 1


async def test_a_process_answers_on_the_first_free_port_and_is_ready_if_all_is_well(tmp_path: Path) -> None:
    async with watched(tmp_path) as (world, _backends):
        config = MonitorConfig(port=free_port())
        readiness: dict[str, str] = {"i": OK}
        server = await asyncio.start_server(lambda *_: None, config.host, config.port)
        registry = world.telemetry.registry
        async with server, monitor(config, registry, world.health, lambda: readiness) as port:
            assert port > config.port, "the first is taken"
            async with httpx.AsyncClient(base_url=f"http://{config.host}:{port}") as client:
                assert (await client.get("/healthz")).status_code == 200
                ready = await client.get("/readyz")
                assert (ready.status_code, ready.json()) == (
                    200, {"status": "ok", "broker": "ok", "store": "ok", "i": "ok"},
                )  # fmt: skip
                scraped = await client.get("/metrics")
                assert problems(scraped.text) == []
                readiness["i"] = "its engine failed"
                assert (await client.get("/readyz")).status_code == 503
                readiness["i"] = OK
                world.store_faults.fail(StoreUnavailableError("the store is away"), "probe")
                ready = await client.get("/readyz")
                assert (ready.status_code, ready.json()["store"]) == (503, "the store is away")


async def test_the_monitor_refuses_pages_foreign_names_and_whoever_has_no_token(tmp_path: Path) -> None:
    token = "of-the-operators-of-this-test"
    async with watched(tmp_path) as (world, _backends):
        config, registry = MonitorConfig(port=free_port()), world.telemetry.registry

        async def statuses(rules: AccessRules | None, path: str, *calls: Mapping[str, Any]) -> list[int]:
            async with (
                monitor(config, registry, world.health, dict, rules) as port,
                httpx.AsyncClient(base_url=f"http://{config.host}:{port}") as client,
            ):
                return [(await client.get(path, headers=headers)).status_code for headers in calls]

        page, name = {"origin": "null"}, {"host": "evil.example"}
        known, wrong = {"authorization": f"Bearer {token}"}, {"authorization": "Bearer other"}
        for path in ("/metrics", "/healthz", "/readyz"):
            assert await statuses(None, path, {}, page, name) == [200, 403, 421]
        closed = AccessRules(token=token)
        assert await statuses(closed, "/metrics", {}, wrong, known, known | page) == [401, 401, 200, 403]
        no_text = {"authorization": b"Bearer \xe4\xff"}, {"host": b"\xe4\xff"}, {"origin": b"\xe4\xff"}
        assert await statuses(closed, "/metrics", *no_text) == [401, 421, 403]
        assert await statuses(closed, "/readyz", {}) == [200]
        assert await statuses(AccessRules(listens_on="0.0.0.0"), "/metrics", {}, known) == [403, 403]


async def test_no_free_port_is_one_clear_error(tmp_path: Path) -> None:
    async with watched(tmp_path) as (world, _backends):
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 65_535)
        async with server:
            with pytest.raises(NoPortError, match="port is 65535: all ports up to 65535"):
                async with monitor(MonitorConfig(port=65_535), world.telemetry.registry, world.health, dict):
                    raise AssertionError("there is no port")


def test_a_request_and_its_metadata_carry_the_same_trace() -> None:
    request = replace(a_request(), traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    assert request.metadata().traceparent == request.traceparent
