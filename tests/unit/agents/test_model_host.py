"""Engines of one instance: at most one awake, warm ones within the host-memory budget, failures reported."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from qlm.agents.core.events import EngineChanged, WeightsPrefetched
from qlm.agents.engines import model_host
from qlm.agents.engines.model_host import ModelHost
from qlm.domain.errors import EngineUnavailableError
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.rct_estimator.host_memory import SwapCost
from support.flaky import until

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
WARM_ONLY = SwapCost(weights_bytes=10)
LASTING = SwapCost(weights_bytes=10, process_bytes=2, warm_s=2.0, reload_s=5.0, cold_s=45.0)


class FakeEngine:
    """Engine that logs its calls, and fails those named in `fail`."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls
        self.fail: set[str] = set()
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.failed_waits: list[Exception] = []
        self.going_to_sleep = asyncio.Event()
        self.asleep = asyncio.Event()
        self.asleep.set()

    @property
    def engine(self) -> "FakeEngine":
        return self

    def _do(self, what: str) -> None:
        self.calls.append(f"{what} {self.name}")
        if what in self.fail:
            raise EngineUnavailableError(f"{self.name} would not {what}")

    async def start(self) -> None:
        self._do("start")
        self.dead = asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        self._do("stop")

    def hangs(self) -> None:
        self._do("hangs")

    async def close(self) -> None:
        self._do("close")

    async def wait_failed(self) -> str:
        if self.failed_waits:
            raise self.failed_waits.pop()
        return await self.dead

    async def prefetch(self) -> bool:
        self._do("prefetch")
        return "come" not in self.fail

    async def drop_prefetched(self) -> None:
        self._do("drop")

    async def sleep(self, level: int = 1) -> None:
        self._do("sleep" if level == 1 else "unload")
        self.going_to_sleep.set()
        await self.asleep.wait()

    async def wake(self) -> None:
        self._do("wake")

    async def capacity(self) -> EngineCapacity:
        return EngineCapacity(kv_tokens=100, block_tokens=1, seqs_max=1, context_tokens=10)

    async def healthy(self) -> bool:
        return True

    async def abort(self, call_ids: Sequence[str]) -> None:
        self._do("abort")

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        yield EngineChunk(token_ids=(), finish="stop")


class Bench:
    def __init__(self, *, host_memory_bytes: int = 100, cost: SwapCost = WARM_ONLY) -> None:
        self.calls: list[str] = []
        self.changes: list[EngineChanged | WeightsPrefetched] = []
        self.counted: list[FaultKind] = []
        self.engines = {model: FakeEngine(model, self.calls) for model in (A, B, C)}
        self.host = ModelHost(
            self.engines,
            costs=dict.fromkeys((A, B, C), cost),
            host_memory_bytes=host_memory_bytes,
            faults=FaultLog(self.counted.append),
        )
        self.host.subscribe(self.changes.append)

    async def swap(self, model: ModelId) -> EngineState:
        self.calls.clear()
        return (await self.host.swap(model)).state


async def test_a_swap_puts_one_engine_to_sleep_and_starts_the_other() -> None:
    bench = Bench()
    assert await bench.swap(A) is EngineState.AWAKE
    assert await bench.swap(B) is EngineState.AWAKE
    assert bench.calls == ["sleep a", "start b"]
    assert bench.host.engine() is bench.engines[B]
    assert EngineChanged(model=A, state=EngineState.ASLEEP) in bench.changes


async def test_a_warm_model_is_woken_not_started() -> None:
    bench = Bench()
    for model in (A, B):
        await bench.swap(model)
    assert await bench.swap(A) is EngineState.AWAKE
    assert bench.calls == ["sleep b", "wake a"]


async def test_host_memory_bounds_warm_models_and_the_oldest_goes_first() -> None:
    bench = Bench(host_memory_bytes=10)
    for model in (A, B):
        await bench.swap(model)
    await bench.swap(C)
    assert bench.calls == ["stop a", "sleep b", "start c"]
    await bench.swap(A)
    assert bench.calls == ["stop b", "sleep c", "start a"]


async def test_the_engine_that_is_to_wake_is_not_stopped_for_the_one_that_sleeps() -> None:
    bench = Bench(host_memory_bytes=10)
    for model in (A, B):
        await bench.swap(model)
    assert await bench.swap(A) is EngineState.AWAKE
    assert bench.calls == ["stop b", "wake a"]


async def test_an_engine_with_a_turn_is_not_stopped_for_one_that_has_none() -> None:
    bench = Bench(host_memory_bytes=10)
    for model in (A, B):
        await bench.swap(model)
    bench.calls.clear()
    await bench.host.swap(C, (A,))
    assert bench.calls == ["stop b", "start c"]


async def test_files_read_ahead_do_not_take_the_room_of_a_model_that_is_going_to_sleep() -> None:
    bench = Bench(host_memory_bytes=15)
    await bench.swap(A)
    bench.engines[A].asleep.clear()
    bench.engines[A].going_to_sleep.clear()
    swap = asyncio.create_task(bench.host.swap(B))
    await bench.engines[A].going_to_sleep.wait()
    assert (await bench.host.prefetch(C)).refused
    bench.engines[A].asleep.set()
    assert (await swap).state is EngineState.AWAKE
    assert EngineChanged(model=A, state=EngineState.ASLEEP) in bench.changes


async def test_a_model_larger_than_host_memory_is_stopped_not_slept() -> None:
    bench = Bench(host_memory_bytes=5)
    await bench.swap(A)
    await bench.swap(B)
    assert bench.calls == ["stop a", "start b"]


async def test_an_engine_that_does_not_wake_is_started_anew() -> None:
    bench = Bench()
    for model in (A, B):
        await bench.swap(model)
    bench.engines[A].fail.add("wake")
    assert await bench.swap(A) is EngineState.AWAKE
    assert bench.calls == ["sleep b", "wake a", "stop a", "start a"]


async def test_a_model_without_room_for_its_weights_keeps_its_process() -> None:
    bench = Bench(host_memory_bytes=16, cost=LASTING)
    for model in (A, B, C):
        await bench.swap(model)
    assert bench.calls == ["unload b", "start c"], "a sleeps warm and holds 12 of 16"
    assert EngineChanged(model=B, state=EngineState.UNLOADED) in bench.changes
    bench.calls.clear()
    woken = await bench.host.swap(B)
    assert (woken.state, woken.tier) == (EngineState.AWAKE, SwapTier.RELOAD)
    assert bench.calls == ["unload c", "wake b"]


async def test_a_failed_reload_is_a_cold_start() -> None:
    bench = Bench(host_memory_bytes=5, cost=LASTING)
    for model in (A, B):
        await bench.swap(model)
    bench.engines[A].fail.add("wake")
    woken = await bench.host.swap(A)
    assert (woken.state, woken.tier) == (EngineState.AWAKE, SwapTier.COLD)


async def test_files_are_held_ahead_until_their_model_comes_up() -> None:
    bench = Bench(cost=LASTING)
    await bench.swap(A)
    assert await bench.host.prefetch(B) == WeightsPrefetched(models=(B,), requested=B)
    assert await bench.host.prefetch(A) == WeightsPrefetched(models=(B,), requested=A, refused=True), (
        "it is awake"
    )
    await bench.swap(B)
    assert bench.calls == ["sleep a", "start b", "drop b"]
    assert bench.changes[-1] == WeightsPrefetched(models=())


async def test_files_that_do_not_come_or_have_no_room_are_refused() -> None:
    bench = Bench(host_memory_bytes=9, cost=LASTING)
    assert await bench.host.prefetch(B) == WeightsPrefetched(models=(), requested=B, refused=True)
    assert "prefetch b" not in bench.calls
    bench = Bench(cost=LASTING)
    bench.engines[B].fail.add("come")
    assert await bench.host.prefetch(B) == WeightsPrefetched(models=(), requested=B, refused=True)
    assert bench.calls[-1] == "drop b"


async def test_files_held_ahead_make_room_for_a_model_that_goes_to_sleep() -> None:
    bench = Bench(host_memory_bytes=20, cost=LASTING)
    await bench.swap(A)
    await bench.host.prefetch(B)
    await bench.swap(C)
    assert bench.calls == ["drop b", "sleep a", "start c"]
    assert WeightsPrefetched(models=()) in bench.changes


async def test_an_engine_that_does_not_start_is_reported_with_the_reason_and_can_be_started_again() -> None:
    bench = Bench()
    bench.engines[A].fail.add("start")
    bench.calls.clear()
    failed = await bench.host.swap(A)
    assert (failed.state, failed.error) == (EngineState.FAILED, "a would not start")
    assert bench.host.engine() is None
    bench.engines[A].fail.clear()
    assert await bench.swap(A) is EngineState.AWAKE


async def test_weights_that_are_not_dropped_cost_no_swap() -> None:
    bench = Bench()
    await bench.swap(A)
    await bench.host.prefetch(B)
    bench.engines[B].fail.add("drop")
    assert (await bench.host.drop_prefetched(B)).models == ()
    await bench.host.prefetch(B)
    assert await bench.swap(B) is EngineState.AWAKE
    assert bench.counted == [FaultKind.UNAVAILABLE] * 2


async def test_the_death_of_the_awake_engine_is_reported() -> None:
    bench = Bench()
    await bench.swap(A)
    reported = asyncio.Event()

    def tell(change: EngineChanged | WeightsPrefetched) -> None:
        bench.changes.append(change)
        reported.set()

    bench.host.subscribe(tell)
    bench.engines[A].dead.set_result("killed by signal 9")
    await reported.wait()
    assert bench.changes[-1] == EngineChanged(model=A, state=EngineState.FAILED, error="killed by signal 9")
    assert bench.host.engine() is None


async def test_the_death_of_an_engine_is_reported_although_waits_for_it_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_host, "WATCH_AGAIN_S", 0.001)
    bench = Bench()
    bench.engines[A].failed_waits = [ZeroDivisionError(), EngineUnavailableError("away"), ZeroDivisionError()]
    await bench.swap(A)
    await until(lambda: not bench.engines[A].failed_waits)
    bench.host.subscribe(bench.changes.append)
    bench.engines[A].dead.set_result("killed by signal 9")
    await until(lambda: bench.host.engine() is None and bench.changes)
    assert bench.changes[-1] == EngineChanged(model=A, state=EngineState.FAILED, error="killed by signal 9")
    assert bench.counted == [FaultKind.BUG, FaultKind.UNAVAILABLE, FaultKind.BUG]
    assert caplog.text.count("the end of the engine of a would not be noticed") == 1


async def test_an_engine_that_stands_still_is_stopped_reported_and_can_be_started_again() -> None:
    bench = Bench()
    await bench.swap(A)
    bench.host.subscribe(bench.changes.append)
    bench.calls.clear()
    await bench.host.fail(A, "it stands still")
    await bench.host.fail(A, "it stands still")
    assert bench.calls == ["hangs a", "stop a"]
    failed = [each for each in bench.changes if isinstance(each, EngineChanged)]
    assert failed[-1] == EngineChanged(model=A, state=EngineState.FAILED, error="it stands still")
    assert bench.host.engine() is None
    assert await bench.swap(A) is EngineState.AWAKE


async def test_an_engine_that_fails_while_a_swap_to_it_succeeds_is_not_the_awake_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    for model in (A, B):
        await bench.swap(model)
    asking, answer = asyncio.Event(), asyncio.Event()
    engine = bench.engines[A]
    capacity = await engine.capacity()

    async def late() -> EngineCapacity:
        asking.set()
        await answer.wait()
        return capacity

    monkeypatch.setattr(engine, "capacity", late)
    swap = asyncio.create_task(bench.host.swap(A))
    await asking.wait()
    engine.dead.set_result("killed by signal 9")
    await until(lambda: bench.host._swapping._waiters)  # its watch
    answer.set()
    assert (await swap).state is EngineState.AWAKE
    await until(lambda: bench.calls[-1] == "stop a")
    assert bench.host.engine() is None
    assert bench.changes[-1] == EngineChanged(model=A, state=EngineState.FAILED, error="killed by signal 9")


async def test_an_engine_without_a_client_is_not_the_awake_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await bench.swap(A)

    def gone(engine: FakeEngine) -> FakeEngine:
        raise EngineUnavailableError(f"engine {engine.name} is not running")

    monkeypatch.setattr(FakeEngine, "engine", property(gone))
    assert bench.host.engine() is None


async def test_closing_lets_go_of_every_engine() -> None:
    bench = Bench()
    await bench.swap(A)
    bench.calls.clear()
    await bench.host.close()
    assert sorted(bench.calls) == ["close a", "close b", "close c"]


async def test_an_engine_that_cannot_be_closed_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.engines[A].fail.add("close")
    await bench.host.close()
    assert sorted(bench.calls) == ["close a", "close b", "close c"]
    assert [record.getMessage() for record in caplog.records] == ["the engine of a was not stopped in order"]
