"""The agent protocol in an honest world: random histories, and what must hold after every step."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qlm.agents.core.events import EngineChanged, Event
from qlm.agents.core.stats.pace import Pace
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.notices import DrainAsked
from qlm.domain.outcome import Outcome
from qlm.domain.request import Request
from qlm.domain.slo import OnMiss
from qlm.store.core import leases, requests
from support.agent_engines import CAPACITY, EOS, Running
from support.agent_other import FOREIGN, HOLD, M, N, other_lets_go, other_pulls
from support.agent_recount import check_counts
from support.agent_world import World
from support.random_policy import RandomPolicy
from support.requests import a_request

T = TypeVar("T")
INDEX = st.integers(0, 7)
OFTEN = st.sampled_from([True, True, True, False])
ROUNDS_MAX = 400
"""Rounds of 0.25 s in which everything must come to its end once the faults and their pauses are over."""


MISHAPS = (
    "calm",
    "plan",
    "tell",
    "poll_hold",
    "lose_connection",
    "wipe_store",
    "publish_twice",
    "publish_late",
    "hand_over_late",
    "hand_over_twice",
    "other_pulls",
    "other_lets_go",
    "die_asleep",
    "drain",
)


def pick(things: list[T], index: int) -> T:
    return things[index % len(things)]


class CountedWorld(World):
    """A world in which, after every event, what the agent counts on the way is what is there."""

    def send(self, event: Event) -> None:
        super().send(event)
        check_counts(self.agent, CAPACITY, self.now_ns)


class AgentMachine(RuleBasedStateMachine):
    """Rules are the steps of `World`, in any order; faults are among them."""

    def new_world(self) -> CountedWorld:
        return CountedWorld()

    @initialize(models=st.lists(st.sampled_from([M, M, N]), min_size=1, max_size=4), steps=st.integers(1, 4))
    def start(self, models: list[ModelId], steps: int) -> None:
        self.world = self.new_world()
        self.world.agent.state.stats.paces.update(dict.fromkeys((M, N), Pace(token_s=0.1, service_s=1.0)))
        self.world.end_swap(ok=True)
        for n, model in enumerate(models):
            self.accept(model, (60_000.0, None)[n % 2], False, False, 4, 12, 15)
        self.world.flow(steps)

    # work

    @rule(
        model=st.sampled_from([M, M, M, N, FOREIGN]),
        deadline_ms=st.sampled_from([None, None, 100.0, 2000.0, 60_000.0]),
        drop=st.booleans(),
        pinned=st.booleans(),
        prompt_tokens=st.sampled_from([4, 4, 4, 40, 300]),
        max_tokens=st.integers(1, 12),
        natural=st.integers(1, 15),
    )
    def accept(
        self,
        model: ModelId,
        deadline_ms: float | None,
        drop: bool,
        pinned: bool,
        prompt_tokens: int,
        max_tokens: int,
        natural: int,
    ) -> None:
        request = a_request(
            f"r{len(self.world.requests)}",
            model=model,
            deadline_ms=deadline_ms,
            arrival_ns=self.world.now_ns,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            on_miss=OnMiss.DROP if drop else OnMiss.SERVE,
            eos_token_ids=(EOS,),
            presence_penalty=0.5 if pinned else 0.0,
        )
        self.world.accept(replace(request, tenant=str(natural)))

    @rule(steps=st.integers(1, 4))
    def flow(self, steps: int) -> None:
        self.world.flow(steps)

    @rule(
        seconds=st.sampled_from([0.0, 0.001, 0.02, 0.06, 0.3, 1.1, 6.0, 25.0]),
        silent=st.sampled_from([False, False, True]),
    )
    def wait(self, seconds: float, silent: bool) -> None:
        self.world.wait(seconds, silent=silent)
        self.world.announce(requests.expire(self.world.state, self.world.now_ns)[1])

    # messages

    @precondition(lambda self: self.world.pulls)
    @rule(index=INDEX, well=OFTEN)
    def answer_pull(self, index: int, well: bool) -> None:
        self.world.answer_pull(pick(self.world.pulls, index), away=not well)

    @precondition(lambda self: self.world.side_effects)
    @rule(count=st.integers(1, 5))
    def write_side_effects(self, count: int) -> None:
        for _ in range(min(count, len(self.world.side_effects))):
            self.world.write_side_effect()

    # store

    @precondition(lambda self: self.world.leases)
    @rule(index=INDEX, reached=OFTEN, answered=OFTEN)
    def answer_lease(self, index: int, reached: bool, answered: bool) -> None:
        self.world.answer_lease(pick(self.world.leases, index), reached=reached, answered=answered)

    @precondition(lambda self: self.world.appends)
    @rule(which=INDEX, reached=OFTEN, answered=OFTEN)
    def answer_append(self, which: int, reached: bool, answered: bool) -> None:
        self.world.answer_append(reached=reached, answered=answered, which=which)

    @precondition(lambda self: self.world.requests)
    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        world = self.world
        id = pick(list(world.requests), index)
        _, effects = requests.cancel(world.state, id, Outcome.CANCELLED, world.now_ns)
        world.announce(effects)

    # everything else that can happen, each of it rarely

    @rule(what=st.sampled_from(MISHAPS), index=INDEX)
    def mishap(self, what: str, index: int) -> None:
        getattr(self, f"_{what}")(self.world, index)

    def _calm(self, world: World, index: int) -> None:
        world.calm()

    def _plan(self, world: World, index: int) -> None:
        world.plan(index)
        world.read_queue()

    def _tell(self, world: World, index: int) -> None:
        if world.notices:
            world.tell()

    def _poll_hold(self, world: World, index: int) -> None:
        world.poll_hold()

    def _lose_connection(self, world: World, index: int) -> None:
        world.lose_connection()

    def _wipe_store(self, world: World, index: int) -> None:
        world.wipe()

    def _publish_twice(self, world: World, index: int) -> None:
        request = pick(list(world.requests.values()), index)
        world.queues[request.cls.queue].append(request)

    def _publish_late(self, world: World, index: int) -> None:
        """An agent whose lease is over by then demotes: it publishes before the store refuses."""
        if late := self._late(index):
            world.queues[late.cls.queue].append(late)

    def _hand_over_late(self, world: World, index: int) -> None:
        if late := self._late(index):
            world.queues[HOLD].append(late)

    def _late(self, index: int) -> Request | None:
        """The message of a request as the demotion of it writes it; None if there can be none."""
        request = pick(list(self.world.requests.values()), index)
        return None if request.deadline_ns is None else replace(request, cls=request.cls.missed())

    def _hand_over_twice(self, world: World, index: int) -> None:
        world.queues[HOLD].append(pick(list(world.requests.values()), index))

    def _other_pulls(self, world: World, index: int) -> None:
        full = [queue for queue, messages in world.queues.items() if messages and queue != HOLD]
        if full:
            other_pulls(world, pick(full, index))

    def _other_lets_go(self, world: World, index: int) -> None:
        if world.others:
            other_lets_go(world, pick(world.others, index), finished=index % 2 == 0)

    def _die_asleep(self, world: World, index: int) -> None:
        if world.asleep and world.swap is None:
            model = world.asleep.pop()
            world.send(EngineChanged(model=model, state=EngineState.FAILED, error="it died asleep"))

    def _drain(self, world: World, index: int) -> None:
        if index == 0:
            world.send(DrainAsked())

    # engines

    @precondition(lambda self: self.calls(arrived=False))
    @rule(index=INDEX)
    def submission_arrives(self, index: int) -> None:
        self.world.arrive(pick(self.calls(arrived=False), index))

    @precondition(lambda self: self.calls(arrived=True, ended=False))
    @rule(index=INDEX, tokens=st.integers(1, 4))
    def generate(self, index: int, tokens: int) -> None:
        self.world.generate(pick(self.calls(arrived=True, ended=False), index), tokens)

    @precondition(lambda self: self.calls(arrived=True, ended=False))
    @rule(tokens=st.integers(1, 4))
    def generate_everywhere(self, tokens: int) -> None:
        for call in self.calls(arrived=True, ended=False):
            self.world.generate(call, tokens)

    @precondition(lambda self: self.calls(ended=True))
    @rule(index=INDEX)
    def tell_end(self, index: int) -> None:
        call = pick(self.calls(ended=True), index)
        assert call.finish is not None
        self.world.end_call(call, call.finish)

    @precondition(lambda self: self.aborted())
    @rule(index=INDEX)
    def abort_takes_effect(self, index: int) -> None:
        self.world.end_call(pick(self.aborted(), index), "abort")

    @precondition(lambda self: self.world.calls)
    @rule(index=INDEX, finish=st.sampled_from(["lost", "lost", "refused", "abort"]))
    def break_off(self, index: int, finish: str) -> None:
        """A stream breaks, even between its last token and its end; or the engine ends it by itself."""
        calls = self.world.calls if finish == "lost" else self.calls(ended=False)
        if calls:
            self.world.end_call(pick(calls, index), finish)

    @precondition(lambda self: self.world.swap is not None)
    @rule(ok=OFTEN)
    def end_swap(self, ok: bool) -> None:
        self.world.end_swap(ok=ok)

    @precondition(lambda self: self.world.awake is not None and self.world.calls)
    @rule()
    def engine_dies(self) -> None:
        self.world.engine_dies()

    @precondition(lambda self: self.world.deaths)
    @rule()
    def tell_death(self) -> None:
        self.world.tell_death()

    @precondition(lambda self: self.world.probes)
    @rule(healthy=OFTEN)
    def answer_probe(self, healthy: bool) -> None:
        self.world.answer_probe(healthy=healthy)

    def calls(self, *, arrived: bool | None = None, ended: bool | None = None) -> list[Running]:
        return [
            call
            for call in self.world.calls
            if arrived in (None, call.arrived) and ended in (None, call.finish is not None)
        ]

    def aborted(self) -> list[Running]:
        return [call for call in self.calls(ended=False) if call.abort_asked]

    # the end

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """Once the faults stop, everything ends (or goes back, if it drains); then a drain is through."""
        if not hasattr(self, "world"):
            return
        world = self.world
        if not world.agent.state.draining:
            self.calm_until(self.all_ended)
            world.send(DrainAsked())
        self.calm_until(lambda: world.drained == 1 and not world.agent.state.requests.all)

    def all_ended(self) -> bool:
        served = {request.id for request in self.world.requests.values() if request.model != FOREIGN}
        return served <= self.world.ended.keys() and not self.world.agent.state.requests.all

    def calm_until(self, done: Callable[[], bool]) -> None:
        rounds = 0
        while rounds < ROUNDS_MAX:
            if done():
                return
            paused_until_ns = max(self.world.agent.state.engines.failed_until_ns.values(), default=0)
            rounds += self.world.now_ns >= paused_until_ns
            self.world.calm()
        raise AssertionError(
            f"not through after {ROUNDS_MAX} calm rounds: {self.world.agent.state.requests.all}"
        )


class HostMachine(AgentMachine):
    """The same with a batch policy that decides by chance, hosted by the agent."""

    def new_world(self) -> CountedWorld:
        return CountedWorld(lambda: RandomPolicy(7))


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)

TestAgentMachine = AgentMachine.TestCase
TestAgentMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


def a_running_world(count: int = 1, deadline_ms: float | None = None) -> World:
    """A world in which some requests of model M generate."""
    world = World()
    world.end_swap(ok=True)
    for n in range(count):
        request = a_request(f"r{n}", deadline_ms=deadline_ms, arrival_ns=world.now_ns, max_tokens=8)
        world.accept(replace(request, tenant="20"))
    world.wait(0.1)
    world.flow()
    assert len(world.calls) == count
    return world


def test_an_unhealthy_engine_is_probed_again_only_after_a_pause() -> None:
    world = a_running_world()
    world.engine_dies()
    world.end_call(world.calls[0], "lost")
    assert len(world.probes) == 1
    world.answer_probe(healthy=False)
    assert not world.probes, "asking at once, again and again, keeps the agent's loop busy"
    world.wait(0.25)
    assert len(world.probes) == 1


def test_a_stream_that_breaks_after_its_engine_was_reported_dead_does_not_stop_the_agent_for_good() -> None:
    world = a_running_world()
    world.engine_dies()
    world.tell_death()
    world.end_call(world.calls[0], "lost")
    for _ in range(40):
        world.calm()
    assert set(world.ended) == set(world.requests)


@pytest.mark.parametrize("demoted", [False, True])
def test_of_two_messages_the_one_of_the_demoted_class_is_kept(demoted: bool) -> None:
    """A demotion that broke off leaves two, and either may be in hand when the other one comes."""
    world = a_running_world(deadline_ms=60_000.0)
    (request,) = world.requests.values()
    late = replace(request, cls=request.cls.missed())
    lease = requests.record(world.state, request.id)
    assert lease is not None and lease.lease is not None
    world.queues[HOLD].append(late)
    if demoted:
        leases.demote(world.state, late, lease.lease.epoch, "too late", world.now_ns)
    world.poll_hold()
    world.send(DrainAsked())
    for _ in range(4):
        world.calm()
    record = requests.record(world.state, request.id)
    assert record is not None and record.metadata.cls.late is demoted
    everywhere = [(queue, each.cls) for queue, messages in world.queues.items() for each in messages]
    assert everywhere == [(record.metadata.cls.queue, record.metadata.cls)]
