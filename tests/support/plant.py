"""One agent at work on real parts: memory store, SQLite queue, controller, and engines that obey a script."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qlm.agents.core.agent import Agent
from qlm.agents.core.state import AgentSettings
from qlm.agents.engines.model_host import EngineHost, ModelHost
from qlm.agents.shell.runner import AgentRunner
from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.telemetry import Telemetry
from qlm.cli.runtime.wiring import group_ids, new_controller_id
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.fleet import Fleet
from qlm.controller.shell.loop import ControllerLoop
from qlm.domain.errors import EngineUnavailableError, InstanceHeldError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import InstanceId, ModelId, QueueName, RequestId, SessionId, TokenIds
from qlm.domain.lease import AgentProcess, Holder
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.domain.ports.store import Store
from qlm.domain.request import Request
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import Kind, ModelCost
from qlm.rct_estimator.host_memory import SwapCost
from qlm.rct_estimator.profiles.builtin import unmeasured_profile
from qlm.store.embedded.memory import MemoryStore
from qlm.store.redis.pipeline import READER
from support.flaky import Faults, flaky, until

M, N = ModelId("m"), ModelId("n")
HOLDER: Final = Holder(InstanceId("i"), SessionId("s"))
FIRST_TOKEN: Final = 100


def answer_to(request: Request) -> TokenIds:
    """What a scripted engine answers: it counts on from `FIRST_TOKEN` until the limit."""
    return tuple(range(FIRST_TOKEN, FIRST_TOKEN + request.sampling.max_tokens))


def known_fleet() -> Fleet:
    """Two models on A10s, at guessed speeds; every swap takes no time."""
    profiles = {(model, "A10"): unmeasured_profile(model, "A10", context_tokens=4096) for model in (M, N)}
    cost = ModelCost(weights_bytes=1, swap_warm_s=0.0, swap_cold_s=0.0)
    return Fleet(
        kinds={"A10": Kind(host_memory_bytes=100, models={M: cost, N: cost})},
        profiles=profiles,
    )


class ScriptedEngine:
    """An engine and its unit in one; a token at a time, no faster than `tokens_max` in all.

    Attributes:
        tokens_max: It pauses once it has made this many tokens, until the number grows.
        abort_fails: Aborts raise, and have no effect.
        running: Call ids in its batch.
        calls: All calls so far.
        media: Media that it was given, by call id.
        prepares: It reads media while this is set.
    """

    def __init__(self) -> None:
        self.tokens_max = 1_000_000
        self.abort_fails = False
        self.aborts = 0
        self.running: dict[str, asyncio.Event] = {}
        self.calls: list[EngineCall] = []
        self.media: dict[str, bytes] = {}
        self.prepares = asyncio.Event()
        self.prepares.set()
        self.made = 0
        self.starts = 0
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def engine(self) -> "ScriptedEngine":
        """The client to talk to it: itself."""
        return self

    def die(self) -> None:
        """Break all streams and go down."""
        self._dead.set_result("it was killed")

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        assert call.call_id not in self.running
        self.calls.append(call)
        dead, aborted = self._dead, asyncio.Event()
        self.running[call.call_id] = aborted
        # A prompt is 1, 2, 3, 4; what follows are tokens of an earlier leg.
        first = max(FIRST_TOKEN, call.prompt_ids[-1] + 1)
        try:
            for n in range(call.sampling.max_tokens):
                await until(lambda: self.made < self.tokens_max or aborted.is_set() or dead.done(), 60.0)
                if dead.done():
                    raise EngineUnavailableError("connection reset")
                if aborted.is_set():
                    yield EngineChunk(token_ids=(), finish="abort")
                    return
                self.made += 1
                last = n == call.sampling.max_tokens - 1
                yield EngineChunk(token_ids=(first + n,), finish="length" if last else None)
        finally:
            del self.running[call.call_id]

    async def prepare(self, call: EngineCall, media: bytes) -> None:
        await self.prepares.wait()
        self.media[call.call_id] = media

    def forget(self, call_id: str) -> None:
        """Keep them, for the test to see."""

    async def abort(self, call_ids: Sequence[str]) -> None:
        self.aborts += 1
        if self.abort_fails:
            raise EngineUnavailableError("abort timed out")
        for call_id in call_ids:
            if call_id in self.running:
                self.running[call_id].set()

    async def capacity(self) -> EngineCapacity:
        return EngineCapacity(kv_tokens=4096, block_tokens=16, seqs_max=4, context_tokens=4096)

    async def healthy(self) -> bool:
        return not self._dead.done()

    async def sleep(self, level: int = 1) -> None:
        assert not self.running, "put to sleep under running requests"

    async def wake(self) -> None:
        """Nothing to do."""

    async def start(self) -> None:
        self.starts += 1
        self._dead = asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        """Nothing to do."""

    def hangs(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def prefetch(self) -> bool:
        return True

    async def drop_prefetched(self) -> None:
        """Nothing to do."""

    async def wait_failed(self) -> str:
        return await asyncio.shield(self._dead)


@dataclass(slots=True)
class Plant:
    """The parts, with the faults between the agent and its store and broker.

    Attributes:
        broker: Of the gateway and the test.
        agent_broker: The agent's own connection, without faults.
    """

    store: Store
    queues: SqliteQueues
    broker: Broker
    agent_broker: Broker
    store_faults: Faults
    broker_faults: Faults
    host: EngineHost
    engines: dict[ModelId, ScriptedEngine]
    protocol: Agent
    runner: AgentRunner
    running: "asyncio.Task[None]"
    requests: list[Request] = field(default_factory=list)

    async def accept(self, *requests: Request) -> None:
        """What a gateway does: publish, then index."""
        for request in requests:
            self.requests.append(request)
            await self.broker.publish(request.cls.queue, codec.encode_request(request))
            await self.store.enqueue(request.metadata())

    async def outcome(self, id: RequestId) -> Outcome | None:
        record = await self.store.record(id)
        return record.outcome if record else None

    async def lose_engine(self, *, made: int) -> None:
        """Let the engine of M die after some tokens, and serve again when its requests are back."""
        engine, state = self.engines[M], self.protocol.state
        await until(lambda: engine.made == made)
        engine.die()
        engine.tokens_max = 1000
        await until(lambda: M in state.engines.failed_until_ns and not state.requests.all)
        state.engines.failed_until_ns.clear()

    async def all_ended(self) -> bool:
        outcomes = [await self.outcome(request.id) for request in self.requests]
        return None not in outcomes

    async def all_end_exactly_once(self) -> None:
        """Wait until every answer is whole, ended once, and its message gone from every queue."""
        await until(self.all_ended)
        await until(self.no_message_left)
        for request in self.requests:
            output = await self.store.read_output(request.id, 0)
            record = await self.store.record(request.id)
            assert output is not None
            assert record is not None
            assert output.token_ids == answer_to(request)
            assert [event.what for event in record.events].count("ended") == 1

    async def no_message_left(self) -> bool:
        """Whether nothing is ready anywhere, and nothing handed out to the agent."""
        names = await self.broker.queues()
        ready = sum([await self.broker.depth(name) for name in names])
        return ready == 0 and not self.protocol.state.requests.all

    async def depth(self, queue: str) -> int:
        return await self.broker.depth(QueueName(queue))


@asynccontextmanager
async def plant(
    folder: Path,
    *,
    host: EngineHost | None = None,
    models: Sequence[ModelId] = (M, N),
    telemetry: Telemetry | None = None,
    grace_s: float = 0.0,
    store: Store | None = None,
    process: AgentProcess | None = None,
    has_ended: Callable[[AgentProcess], bool] = lambda _: False,
) -> AsyncIterator[Plant]:
    """Run an agent and a controller in `folder`; at the end both must stop without a rest."""
    clock = SystemClock()
    before = asyncio.all_tasks()
    file = await SqliteFile.open(folder / "queue.db")
    queues = await SqliteQueues.open(file)
    store, store_faults, broker_faults = store or MemoryStore(clock), Faults(), Faults()
    engines = {model: ScriptedEngine() for model in models}
    host = host or ModelHost(
        engines, costs=dict.fromkeys(models, SwapCost(weights_bytes=1)), host_memory_bytes=100
    )
    protocol = Agent(HOLDER, "A10", models, AgentSettings(retry_s=0.02))
    agent_broker = queues.broker()
    runner = AgentRunner(
        protocol,
        broker=flaky(agent_broker, broker_faults),
        store=flaky(store, store_faults),
        host=host,
        clock=clock,
        on_submitted=telemetry.agents.submitted if telemetry and telemetry.agents else None,
        tracer=telemetry.tracer if telemetry else None,
        process=process,
        has_ended=has_ended,
    )
    if telemetry is not None and telemetry.agents is not None:
        telemetry.agents.add(protocol)
    controller = ControllerLoop(
        name=new_controller_id(),
        store=store,
        broker=queues.broker(),
        clock=clock,
        fleet=known_fleet(),
        settings=ControllerSettings(quiet_s=0.05),
        planner=plan_edf,
        new_group_id=group_ids(),
        metrics=telemetry.controller if telemetry else None,
    )
    tasks = [asyncio.create_task(runner.run(grace_s)), asyncio.create_task(controller.run())]
    try:
        yield Plant(
            store, queues, queues.broker(), agent_broker, store_faults, broker_faults,
            host, engines, protocol, runner, tasks[0],
        )  # fmt: skip
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await host.close()
        await queues.close()
        await file.close()
    expected = (asyncio.CancelledError, InstanceHeldError)  # the latter is awaited by the test
    assert [r for r in results if r is not None and not isinstance(r, expected)] == []
    # A store in Redis was given, and is closed by whoever gave it.
    left = {each for each in asyncio.all_tasks() - before if each.get_name() != READER}
    assert not left, f"tasks outlived their owner: {left}"
