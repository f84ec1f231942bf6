import asyncio

from qlm.broker.threads import Batcher


async def test_items_of_one_turn_are_delivered_as_one_list() -> None:
    batches: list[list[int]] = []
    batcher = Batcher(asyncio.get_running_loop(), batches.append)
    for n in range(5):
        batcher.put(n)
    assert batches == []
    await asyncio.sleep(0)
    batcher.put(5)
    await asyncio.sleep(0)
    assert batches == [[0, 1, 2, 3, 4], [5]]


async def test_a_flush_delivers_at_once_and_only_once() -> None:
    batches: list[list[int]] = []
    batcher = Batcher(asyncio.get_running_loop(), batches.append)
    batcher.put(1)
    batcher.flush()
    assert batches == [[1]]
    await asyncio.sleep(0)
    assert batches == [[1]]
