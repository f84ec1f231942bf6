"""The simulated store keeps the rules of the Redis store for what a loss of keys leaves."""

import asyncio

from qlm.domain.ids import GatewayId
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry
from simulation.lost_keys import Key, LossyStore
from support.gateway import SystemClock
from support.plant import HOLDER
from support.requests import a_request

CARD = a_request("r").metadata()
GATEWAY = GatewayId("g")


async def leased(store: LossyStore) -> Granted:
    answer = await store.lease(CARD, HOLDER, None)
    assert isinstance(answer, Granted)
    return answer


async def append(
    store: LossyStore, lease: Granted, offset: int, *tokens: int, outcome: Outcome | None = None
) -> AppendResult:
    entry = LogEntry(id=CARD.id, epoch=lease.lease.epoch, offset=offset, token_ids=tokens, outcome=outcome)
    (result,) = await store.append([entry])
    return result


def test_a_lost_log_is_begun_anew_under_the_next_lease() -> None:
    async def work() -> None:
        store = LossyStore(SystemClock())
        await store.enqueue(CARD, GATEWAY)
        first = await leased(store)
        assert await append(store, first, 0, 7, 8) is AppendResult.TAKEN
        store.lose(Key("log", CARD.id))
        assert await append(store, first, 2, 9) is AppendResult.GAP
        assert await append(store, first, 0, 7) is AppendResult.GAP
        second = await leased(store)
        assert second.output == ()
        assert await append(store, second, 0, 7, 8, outcome=Outcome.STOP) is AppendResult.TAKEN

    asyncio.run(work())


def test_an_answer_whose_log_is_lost_is_no_answer() -> None:
    async def work() -> None:
        store = LossyStore(SystemClock())
        await store.enqueue(CARD)
        assert await append(store, await leased(store), 0, 7, outcome=Outcome.STOP) is AppendResult.TAKEN
        store.lose(Key("log", CARD.id))
        output, record = await store.read_output(CARD.id, 0), await store.record(CARD.id)
        assert output is not None
        assert record is not None
        assert (output.token_ids, output.outcome) == ((), Outcome.OUTPUT_LOST)
        assert (record.output_tokens, record.outcome) == (0, Outcome.OUTPUT_LOST)

    asyncio.run(work())


def test_an_entry_under_the_lease_of_a_lost_row_is_not_taken_under_the_next_one() -> None:
    async def work() -> None:
        store = LossyStore(SystemClock())
        await store.enqueue(CARD)
        former = await leased(store)
        store.lose(Key("request", CARD.id))
        await store.enqueue(CARD)
        assert await append(store, former, 0, 7) is AppendResult.UNKNOWN
        assert (await leased(store)).lease.epoch > former.lease.epoch
        assert await append(store, former, 0, 7) is AppendResult.UNKNOWN

    asyncio.run(work())


def test_each_key_can_be_lost_and_the_request_still_ends() -> None:
    async def work(kind: str) -> None:
        store = LossyStore(SystemClock())
        await store.enqueue(CARD)
        if kind in ("log", "held"):
            assert await append(store, await leased(store), 0, 7) is AppendResult.TAKEN
        for key in store.present_keys():
            if key.kind == kind:
                store.lose(key)
        await store.enqueue(CARD)
        again = await leased(store)
        assert (
            await append(store, again, 0 if kind != "held" else 1, 7, outcome=Outcome.STOP)
            is AppendResult.TAKEN
        )

    for kind in ("request", "log", "watchers", "class", "waiting", "held", "leader"):
        asyncio.run(work(kind))
