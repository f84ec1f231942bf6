"""The asyncio interpreter on a real store and a real queue, each away for a while."""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from qlm.agents.core.agent import Agent
from qlm.agents.core.events import Event, LeaseAnswered, Pulled
from qlm.agents.core.state import AgentSettings
from qlm.agents.shell.own_process import own_process
from qlm.broker import codec
from qlm.broker.topology import DEAD, hold_queue
from qlm.domain.actions import Action
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError, StoreUnavailableError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import SessionId
from qlm.domain.lease import InstanceHeld
from qlm.domain.outcome import Outcome
from qlm.store.embedded.memory import MemoryStore
from support.flaky import until
from support.gateway import SystemClock
from support.plant import HOLDER, M, N, plant
from support.requests import a_request

STORE_AWAY = StoreUnavailableError("the store is away")
BROKER_AWAY = BrokerUnavailableError("the broker is away")
HOLD = hold_queue(HOLDER.instance)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the same steps at a quicker beat."""
    monkeypatch.setattr("qlm.agents.shell.side_effects.RETRY_S", 0.02)
    monkeypatch.setattr("qlm.agents.shell.runner.RETRY_S", 0.02)
    monkeypatch.setattr("qlm.agents.shell.runner.POLL_S", 0.05)
    monkeypatch.setattr("qlm.agents.shell.runner.HEARTBEAT_S", 0.05)
    monkeypatch.setattr("qlm.agents.shell.instance_lease.HEARTBEAT_TTL_S", 0.3)
    monkeypatch.setattr("qlm.controller.shell.reconciler.PERIOD_NS", 50_000_000)


async def test_what_is_accepted_is_answered_and_its_message_deleted(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        await it.accept(*(a_request(f"r{n}", model=model) for n in range(4) for model in (M, N)[n % 2 :][:1]))
        await it.all_end_exactly_once()


async def test_a_pull_and_its_leases_at_once_are_one_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[type[Event]] = []
    decisions: list[set[type[Event]]] = []
    take, decide = Agent.take, Agent.decide

    def taking(agent: Agent, events: Iterable[Event], now_ns: int) -> list[Action]:
        events = tuple(events)
        taken.extend(map(type, events))
        return take(agent, events, now_ns)

    def deciding(agent: Agent, now_ns: int) -> list[Action]:
        decisions.append(set(taken))
        taken.clear()
        return decide(agent, now_ns)

    monkeypatch.setattr(Agent, "take", taking)
    monkeypatch.setattr(Agent, "decide", deciding)
    async with plant(tmp_path) as it:
        await it.accept(a_request("r0"))
        await it.all_end_exactly_once()
    assert [each for each in decisions if LeaseAnswered in each] == [{Pulled, LeaseAnswered}]
    assert not taken


@pytest.mark.parametrize(
    ("method", "unheard"),
    [
        *itertools.product(("lease", "append", "virtual_queue", "heartbeat"), (False, True)),
        ("notices", False),
    ],
)
async def test_a_store_that_was_away_costs_no_answer(tmp_path: Path, method: str, unheard: bool) -> None:
    async with plant(tmp_path) as it:
        fail = it.store_faults.fail_unheard if unheard else it.store_faults.fail
        fail(STORE_AWAY, method)
        await it.accept(*(a_request(f"r{n}") for n in range(3)))
        if method in ("notices", "heartbeat"):
            await until(lambda: it.store_faults.raised[method] >= 1)
        else:
            await until(lambda: it.store_faults.raised[method] >= 2)
        it.store_faults.heal()
        await it.all_end_exactly_once()


@pytest.mark.parametrize("method", ["get", "ack"])
async def test_a_broker_that_was_away_costs_no_answer(tmp_path: Path, method: str) -> None:
    async with plant(tmp_path) as it:
        it.broker_faults.fail(BROKER_AWAY, method)
        await it.accept(*(a_request(f"r{n}") for n in range(3)))
        await until(lambda: it.broker_faults.raised[method] >= 2)
        it.broker_faults.heal()
        await it.all_end_exactly_once()


async def test_a_lost_delivery_is_left_to_its_next_holder(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 0
        await it.accept(a_request())
        await until(lambda: it.engines[M].running)
        it.broker_faults.fail(DeliveryLostError("its channel is gone"), "ack")
        it.engines[M].tokens_max = 1000
        await until(lambda: it.broker_faults.raised["ack"])
        it.broker_faults.heal()
        assert await it.outcome(it.requests[0].id) is Outcome.LENGTH
        await it.agent_broker.close()
        assert await it.depth(it.requests[0].cls.queue) in (0, 1), "the controller may have deleted it"
        await until(it.no_message_left)


@pytest.mark.parametrize("method", ["release", "requeue"])
async def test_a_return_is_repeated_until_store_and_broker_have_it(tmp_path: Path, method: str) -> None:
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 2
        await it.accept(a_request())
        await until(lambda: it.engines[M].made == 2)
        (it.store_faults if method == "release" else it.broker_faults).fail(
            STORE_AWAY if method == "release" else BROKER_AWAY, method
        )
        it.engines[M].die()
        it.engines[M].tokens_max = 1000
        await until(lambda: (it.store_faults.raised + it.broker_faults.raised)[method] >= 2)
        it.store_faults.heal()
        it.broker_faults.heal()
        # On a busy machine its pause may be over by now.
        await until(lambda: M in it.protocol.state.engines.failed_until_ns or it.engines[M].starts == 2)
        it.protocol.state.engines.failed_until_ns.clear()
        await it.all_end_exactly_once()
        record = await it.store.record(it.requests[0].id)
        assert record is not None
        assert "returned" in [event.what for event in record.events]


async def test_an_engine_that_dies_mid_stream_resumes_elsewhere_from_the_log(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 5
        await it.accept(a_request("a"), a_request("b"))
        await it.lose_engine(made=5)
        await it.all_end_exactly_once()
        assert it.engines[M].starts == 2


async def test_an_abort_that_fails_is_tried_again(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 1
        it.engines[M].abort_fails = True
        await it.accept(a_request())
        await until(lambda: it.engines[M].made == 1)
        await it.store.cancel(it.requests[0].id)
        await until(lambda: it.engines[M].aborts)
        it.engines[M].abort_fails = False
        await until(it.all_ended)
        assert await it.outcome(it.requests[0].id) is Outcome.CANCELLED
        await until(it.no_message_left)


async def test_an_unreadable_message_becomes_a_dead_letter_with_its_reason(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        request = a_request()
        it.broker_faults.fail(BROKER_AWAY, "publish")
        await it.broker.publish(HOLD, b"no request")
        await it.accept(request)
        await until(lambda: it.broker_faults.raised["publish"] >= 2)
        it.broker_faults.heal()
        await until(lambda: it.depth(DEAD))
        (dead,) = await it.broker.get(DEAD)
        letter = codec.decode_dead_letter(dead.body)
        assert (letter.queue, letter.body) == (HOLD, b"no request")
        assert "not JSON" in letter.reason
        await it.all_end_exactly_once()


async def test_a_held_message_of_a_model_not_served_here_goes_to_its_class_queue(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        stray = a_request("stray", model="nobody-serves-it")
        await it.broker.publish(HOLD, codec.encode_request(stray))
        await it.store.enqueue(stray.metadata())
        await until(lambda: it.depth(stray.cls.queue))
        assert await it.depth(HOLD) == 0


async def test_a_request_taken_from_the_hold_queue_is_returned_where_others_can_pull_it(
    tmp_path: Path,
) -> None:
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 2
        request = a_request()
        it.requests.append(request)
        await it.broker.publish(HOLD, codec.encode_request(request))
        await until(lambda: it.engines[M].made == 2)
        await it.store.ask_drain(HOLDER.instance)
        await asyncio.wait_for(it.running, 10)
        await until(lambda: it.depth(request.cls.queue))


async def test_draining_returns_everything_and_ends_the_run(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 3
        await it.accept(*(a_request(f"r{n}") for n in range(6)))
        await until(lambda: it.engines[M].made == 3)
        await it.store.ask_drain(HOLDER.instance)
        await asyncio.wait_for(it.running, 10)
        assert not it.protocol.state.requests.all
        assert await it.depth(it.requests[0].cls.queue) == 6
        records = [await it.store.record(request.id) for request in it.requests]
        assert all(record is not None and record.lease is None for record in records)
        returned = [e.why for r in records if r is not None for e in r.events if e.what == "returned"]
        assert set(returned) == {"draining"}


class RefusesHeartbeats(MemoryStore):
    """A store that refuses heartbeats until it `works`."""

    works = False
    refused = 0

    async def heartbeat(
        self, status: InstanceStatus, ttl_s: float, replaces: SessionId | None = None
    ) -> InstanceHeld | None:
        if not self.works:
            self.refused += 1
            raise STORE_AWAY
        return await super().heartbeat(status, ttl_s, replaces)


async def test_a_drain_of_the_session_before_does_not_end_this_one(tmp_path: Path) -> None:
    store = RefusesHeartbeats(SystemClock())
    former = Agent(replace(HOLDER, session=SessionId("former")), "A10", (M, N), AgentSettings())
    this = own_process(1)
    await MemoryStore.heartbeat(store, replace(former.status(), process=this), 60.0)
    await store.ask_drain(HOLDER.instance)
    async with plant(tmp_path, store=store, process=this) as it:
        await until(lambda: store.refused >= 3)
        store.works = True
        await it.accept(a_request())
        await it.all_end_exactly_once()


async def test_a_drain_shows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qlm.agents.shell.runner.HEARTBEAT_S", 3600)
    monkeypatch.setattr("qlm.agents.shell.instance_lease.HEARTBEAT_TTL_S", 3600)
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 3
        await it.accept(a_request())
        await until(lambda: it.engines[M].made == 3)
        it.store_faults.fail(STORE_AWAY, "release")
        await it.store.ask_drain(HOLDER.instance)

        async def shown() -> bool:
            return [status.draining for status in (await it.store.view()).instances] == [True]

        await until(shown)
        it.store_faults.heal()
        await asyncio.wait_for(it.running, 10)


async def test_draining_waits_until_its_returns_are_written(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 3
        await it.accept(a_request())
        await until(lambda: it.engines[M].made == 3)
        it.store_faults.fail(STORE_AWAY, "release")
        await it.store.ask_drain(HOLDER.instance)
        await until(lambda: it.store_faults.raised["release"] >= 1)
        it.store_faults.heal()
        await asyncio.wait_for(it.running, 10)
        assert await it.depth(it.requests[0].cls.queue) == 1
        record = await it.store.record(it.requests[0].id)
        assert record is not None
        assert [e.why for e in record.events if e.what == "returned"] == ["draining"]


async def test_a_cancelled_run_says_goodbye_and_leaves_no_task(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        it.engines[M].tokens_max = 3
        await it.accept(a_request())
        await until(lambda: it.engines[M].made == 3)
        it.running.cancel()
        await asyncio.gather(it.running, return_exceptions=True)
        assert (await it.store.view()).instances == ()
        await it.agent_broker.close()
        await until(lambda: it.depth(it.requests[0].cls.queue))


async def test_when_cancelled_it_returns_what_others_can_resume_and_finishes_the_rest(
    tmp_path: Path,
) -> None:
    async with plant(tmp_path, grace_s=60) as it:
        it.engines[M].tokens_max = 3
        pinned = a_request("pinned", frequency_penalty=0.5, priority=-1)
        await it.accept(pinned)
        await until(lambda: it.engines[M].made == 3)
        await it.accept(*(a_request(f"r{n}") for n in range(3)))
        await until(lambda: len(it.engines[M].running) == 4)
        it.running.cancel()
        await until(lambda: len(it.engines[M].running) == 1)
        it.engines[M].tokens_max = 1000
        with pytest.raises(asyncio.CancelledError):
            await it.running
        assert await it.outcome(pinned.id) is Outcome.LENGTH
        assert await it.depth(it.requests[1].cls.queue) == 3
        for request in it.requests[1:]:
            record = await it.store.record(request.id)
            assert record is not None
            assert (record.state, record.lease) == ("queued", None)
        assert (await it.store.view()).instances == ()


async def test_what_cannot_be_given_back_within_the_grace_is_left_to_the_next_holder(tmp_path: Path) -> None:
    async with plant(tmp_path, grace_s=0.05) as it:
        it.engines[M].tokens_max = 3
        await it.accept(a_request("pinned", frequency_penalty=0.5))
        await until(lambda: it.engines[M].made == 3)
        it.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await it.running
        assert (await it.store.view()).instances == ()
        await it.agent_broker.close()
        await until(lambda: it.depth(it.requests[0].cls.queue))


@pytest.mark.parametrize("times", [1, 3])
async def test_a_store_that_drops_cancellations_does_not_keep_the_agent_from_stopping(
    tmp_path: Path, times: int
) -> None:
    async with plant(tmp_path) as it:
        await it.accept(a_request())
        it.store_faults.drop_cancellations(times, "virtual_queue")
        await until(lambda: it.store_faults.lingering["virtual_queue"])
        it.running.cancel()
        ended, _ = await asyncio.wait([it.running], timeout=5 * times)
        assert ended
        assert (await it.store.view()).instances == ()


async def test_a_store_away_at_the_end_does_not_keep_the_agent_from_stopping(tmp_path: Path) -> None:
    async with plant(tmp_path) as it:
        await until(lambda: it.engines[M].starts)
        it.store_faults.fail(STORE_AWAY, "leave")
        it.running.cancel()
        await asyncio.gather(it.running, return_exceptions=True)
        assert it.store_faults.raised["leave"] == 1
