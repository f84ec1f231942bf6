"""Agents that want the instance of another one, on a real store and a real queue."""

import asyncio
import logging
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from qlm.agents.core.agent import Agent
from qlm.agents.core.state import AgentSettings
from qlm.agents.engines.guard import start_ticks
from qlm.agents.engines.model_host import ModelHost
from qlm.agents.shell import own_process as facts
from qlm.agents.shell.instance_lease import InstanceLease
from qlm.agents.shell.own_process import has_ended, own_process
from qlm.agents.shell.runner import AgentRunner
from qlm.cli.runtime.clock import SystemClock
from qlm.domain.errors import BrokerUnavailableError, InstanceHeldError, StoreUnavailableError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import ModelId, SessionId
from qlm.domain.lease import AgentProcess, Holder, InstanceHeld
from qlm.domain.shell.faults import FaultLog
from qlm.rct_estimator.host_memory import SwapCost
from qlm.store.embedded.memory import MemoryStore
from support.flaky import Faults, flaky, until
from support.plant import HOLDER, M, N, Plant, ScriptedEngine, plant
from support.requests import a_request

SECOND = replace(HOLDER, session=SessionId("second"))
OLD = AgentProcess(
    host="node-7", pid=41, start_ticks=1000, boot_id="boot", pid_namespace="pid:[1]", began_ns=10**18
)
NEW = replace(OLD, pid=57, start_ticks=2000)
ELSEWHERE = replace(NEW, host="node-8", boot_id="boot-2")
AWAY = StoreUnavailableError("the store is away")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the same steps at a quicker beat."""
    for module in ("side_effects", "runner", "instance_lease"):
        monkeypatch.setattr(f"qlm.agents.shell.{module}.RETRY_S", 0.02)
    monkeypatch.setattr("qlm.agents.shell.runner.POLL_S", 0.05)
    monkeypatch.setattr("qlm.agents.shell.runner.HEARTBEAT_S", 0.05)
    monkeypatch.setattr("qlm.agents.shell.instance_lease.HEARTBEAT_TTL_S", 0.5)
    monkeypatch.setattr("qlm.controller.shell.reconciler.PERIOD_NS", 50_000_000)


class AdvancedClock(SystemClock):
    """The machine's clock, ahead by as much as a test says."""

    ahead_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.ahead_ns


@dataclass(slots=True)
class Second:
    """A second agent of the instance; `calls` counts what it asks of the broker, which it cannot have."""

    protocol: Agent
    running: "asyncio.Task[None]"
    calls: Faults


@asynccontextmanager
async def second_agent(
    it: Plant,
    *,
    models: tuple[ModelId, ...] = (M, N),
    patient: bool = False,
    process: AgentProcess | None = None,
    idle: bool = False,
) -> AsyncIterator[Second]:
    """Run another agent on the parts of a plant; `idle` keeps messages from it."""
    broker, faults, calls = it.queues.broker(), Faults(), Faults()
    if idle:
        calls.fail(BrokerUnavailableError("not for it"), "get", "publish", "ack", "requeue")
    engines = {model: ScriptedEngine() for model in models}
    host = ModelHost(engines, costs=dict.fromkeys(models, SwapCost(weights_bytes=1)), host_memory_bytes=100)
    protocol = Agent(SECOND, "A10", models, AgentSettings(retry_s=0.02))
    runner = AgentRunner(
        protocol,
        broker=flaky(broker, calls),
        store=flaky(it.store, faults),
        host=host,
        clock=SystemClock(),
        process=process,
    )
    running = asyncio.create_task(runner.run(patient=patient))
    try:
        yield Second(protocol, running, calls)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await host.close()
        await broker.close()


async def holder(it: Plant) -> Holder | None:
    """Who has the lease of the instance."""
    return next((each.holder for each in (await it.store.view()).instances), None)


@pytest.mark.parametrize("models", [(M, N), (ModelId("x"),)])
async def test_a_second_agent_is_refused_and_takes_nothing(
    tmp_path: Path, models: tuple[ModelId, ...]
) -> None:
    async with plant(tmp_path, process=OLD) as it:
        await it.accept(*(a_request(f"r{n}") for n in range(3)))
        async with second_agent(it, models=models, process=ELSEWHERE, idle=True) as second:
            with pytest.raises(InstanceHeldError, match="i has an agent already: process 41 on node-7"):
                await asyncio.wait_for(second.running, 10)
            assert not second.calls.raised
        assert await holder(it) == HOLDER
        reported = (await it.store.refused_agents())[HOLDER.instance]
        assert reported.startswith(
            f"a second agent (process {ELSEWHERE.pid} on {ELSEWHERE.host}) was refused"
        )
        assert "process 41 on node-7" in reported
        await it.all_end_exactly_once()


async def test_an_agent_that_lost_its_lease_returns_its_work_and_ends(tmp_path: Path) -> None:
    """As after a pause or a partition; its successor answers, and no token comes twice."""
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 3
        await it.accept(*(a_request(f"r{n}") for n in range(3)))
        await until(lambda: it.engines[M].made == 3)
        async with second_agent(it, process=ELSEWHERE):
            it.store_faults.fail(AWAY, "heartbeat")

            async def taken() -> bool:
                return await holder(it) == SECOND

            await until(taken)
            it.store_faults.heal()
            with pytest.raises(InstanceHeldError, match=r"was taken over by another agent.*node-8"):
                await asyncio.wait_for(asyncio.shield(it.running), 10)
            assert not it.protocol.state.requests.all
            await it.all_end_exactly_once()
            assert await holder(it) == SECOND


async def test_an_agent_whose_lease_may_have_lapsed_pulls_nothing(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        it.store_faults.fail(AWAY, "heartbeat")

        async def lapsed() -> bool:
            return await holder(it) is None

        await until(lapsed)
        it.broker_faults.fail(BrokerUnavailableError("asked"), "get")
        await it.accept(a_request())
        beats = it.store_faults.raised["heartbeat"]
        await until(lambda: it.store_faults.raised["heartbeat"] >= beats + 5)
        assert it.broker_faults.raised["get"] == 0
        it.store_faults.heal()
        await until(lambda: it.broker_faults.raised["get"])
        it.broker_faults.heal()
        await it.all_end_exactly_once()


def held_by(process: AgentProcess | None) -> InstanceStatus:
    """Status of an agent that was killed."""
    return InstanceStatus(
        holder=replace(HOLDER, session=SessionId("killed")), accelerator="A10", models=(M,), process=process
    )


async def test_a_killed_agent_is_followed_at_once_on_its_machine(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await store.heartbeat(held_by(OLD), 3600.0)
    async with plant(tmp_path, store=store, process=NEW, has_ended=lambda process: process == OLD) as it:
        await it.accept(a_request())
        await it.all_end_exactly_once()
        assert await holder(it) == HOLDER


async def test_the_next_session_of_a_process_takes_over_from_its_own(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    await store.heartbeat(held_by(NEW), 3600.0)
    async with plant(tmp_path, store=store, process=replace(NEW, began_ns=NEW.began_ns + 1)) as it:
        await it.accept(a_request())
        await it.all_end_exactly_once()


class LateAnswers(MemoryStore):
    """Refuses at once the first time; the next answer comes when the lease has lapsed meanwhile."""

    lapsed_s = 0.0

    async def heartbeat(
        self, status: InstanceStatus, ttl_s: float, replaces: SessionId | None = None
    ) -> InstanceHeld | None:
        refusal = await super().heartbeat(status, ttl_s, replaces)
        loop = asyncio.get_running_loop()
        if refusal is not None and not self.lapsed_s:
            self.lapsed_s = loop.time() + refusal.lapses_in_s
        elif refusal is not None:
            await until(lambda: loop.time() > self.lapsed_s)
        return refusal


async def test_a_refusal_that_comes_late_is_no_sign_of_life(tmp_path: Path) -> None:
    """On a busy machine an answer may be read after the lapse of the lease that it tells of."""
    store = LateAnswers(SystemClock())
    await store.heartbeat(held_by(OLD), 0.3)
    lease = InstanceLease(HOLDER, store, FaultLog(), ELSEWHERE, lambda _: False)
    status = InstanceStatus(holder=HOLDER, accelerator="A10", models=(M,))
    await asyncio.wait_for(lease.acquire(lambda: status, patient=False), 10)
    assert lease.valid


@pytest.mark.parametrize("process", [ELSEWHERE, None])
async def test_a_restart_elsewhere_waits_for_the_lease_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, process: AgentProcess | None
) -> None:
    caplog.set_level(logging.INFO, "qlm.agents")
    clock = AdvancedClock()
    store = MemoryStore(clock)
    await store.heartbeat(held_by(process), 60.0)

    def said() -> list[str]:
        return [message for message in caplog.messages if "lease" in message]

    async with plant(tmp_path, store=store, process=NEW, has_ended=lambda _: True) as it:
        await it.accept(a_request())
        await until(lambda: bool(said()))
        clock.ahead_ns = 60 * 10**9
        await it.all_end_exactly_once()
    assert len(said()) == 1
    assert re.match(r"i: waits [3-6]\d\.\d s", said()[0])
    assert ("on node-8" if process else "of an earlier version") in said()[0]


async def test_a_patient_agent_says_once_that_it_waits_and_serves_when_the_other_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "qlm.agents")
    async with plant(tmp_path, process=OLD) as it, second_agent(it, process=NEW, patient=True) as second:

        def refused() -> list[str]:
            return [each.getMessage() for each in caplog.records if "has an agent" in each.getMessage()]

        await until(lambda: bool(refused()))
        assert not second.running.done()
        await it.store.ask_drain(HOLDER.instance)
        await asyncio.wait_for(asyncio.shield(it.running), 10)

        async def serves() -> bool:
            return await holder(it) == SECOND

        await until(serves)
        await it.accept(a_request())
        await it.all_end_exactly_once()
        assert len(refused()) == 1


@pytest.mark.parametrize("unheard", [False, True])
async def test_an_agent_pulls_nothing_before_the_store_has_given_it_the_lease(
    tmp_path: Path, unheard: bool
) -> None:
    async with plant(tmp_path) as it:
        it.running.cancel()
        await asyncio.gather(it.running, return_exceptions=True)
        (it.store_faults.fail_unheard if unheard else it.store_faults.fail)(AWAY, "heartbeat")
        it.broker_faults.fail(BrokerUnavailableError("asked"), "get")
        again = asyncio.create_task(it.runner.run())
        await until(lambda: it.store_faults.raised["heartbeat"] >= 3)
        assert it.broker_faults.raised["get"] == 0
        it.store_faults.heal()
        await until(lambda: it.broker_faults.raised["get"])
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        assert await holder(it) is None, "it left"


def test_this_process_is_known_by_its_machine_and_has_not_ended() -> None:
    this = own_process(1)
    assert this.boot_id and this.pid_namespace and this.host
    assert (this.pid, this.start_ticks) == (os.getpid(), start_ticks(os.getpid()))
    assert this.sees(own_process(2)) and this.runs(own_process(2))
    assert not has_ended(this)


def test_a_process_has_ended_when_it_is_gone_a_zombie_or_another_with_its_id() -> None:
    with subprocess.Popen(["sleep", "1000"], env={}) as child:
        ticks = start_ticks(child.pid)
        assert ticks is not None
        process = replace(own_process(1), pid=child.pid, start_ticks=ticks)
        assert not has_ended(process)
        assert has_ended(replace(process, start_ticks=ticks - 1))
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(process), "a zombie"
    assert has_ended(process)


@pytest.mark.parametrize(("error", "ended"), [(PermissionError, False), (ProcessLookupError, True)])
def test_a_process_that_proc_hides_has_not_ended(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError], ended: bool
) -> None:
    """Mounted with `hidepid`, /proc does not show the processes of other users."""

    def no_signal(pid: int, number: int) -> None:
        raise error

    empty: Callable[[int], list[str]] = lambda _: []  # noqa: E731
    monkeypatch.setattr(facts, "process_stat", empty)
    monkeypatch.setattr(facts, "start_ticks", lambda _: None)
    monkeypatch.setattr(os, "kill", no_signal)
    assert has_ended(OLD) is ended


def test_a_proc_of_another_namespace_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1 << 22)
    assert own_process(1).boot_id == ""
