"""The simulated engine begins generations in the order in which they were submitted."""

import asyncio
from collections import Counter
from random import Random

from qlm.domain.ids import ModelId
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from simulation.engine import SimulatedEngine
from simulation.hang import EngineHang
from simulation.history import History, Started
from simulation.machine import Machine
from simulation.process import own_tasks
from simulation.settings import CAPACITY
from simulation.virtual_loop import VirtualLoop
from support.plant import HOLDER

MODEL = ModelId("llama")
SLOWNESS = 30.0


def _call(id: str) -> EngineCall:
    return EngineCall(call_id=f"{id}-1", prompt_ids=(1, 2, 3), sampling=Sampling(max_tokens=4))


async def _generate(engine: SimulatedEngine, id: str) -> None:
    async for _ in engine.generate(_call(id)):
        pass


def test_an_abort_does_not_let_a_call_overtake_an_earlier_one_in_a_slow_engine() -> None:
    loop, history = VirtualLoop(), History()
    own_tasks(loop)
    machine = Machine(
        loop,
        history,
        HOLDER,
        blocks_max=CAPACITY.kv_blocks,
        weights_bytes={MODEL: 1},
        host_memory_bytes=0,
        engine_failures=Counter(),
    )
    # The first number drawn with this seed is small: the abort works before a slow submission would.
    engine = SimulatedEngine(loop, MODEL, machine, CAPACITY, Random(1), EngineHang(loop))

    async def work() -> None:
        await engine.start()
        machine.slowness = SLOWNESS
        calls = [loop.create_task(_generate(engine, id)) for id in ("first", "second")]
        await asyncio.sleep(0)  # one turn of this deterministic loop: both calls are on their way
        await engine.abort(["second-1"])
        await asyncio.gather(*calls)

    try:
        loop.run_until_complete(work())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    assert [event.id for event in history.events if isinstance(event, Started)] == ["first", "second"]
