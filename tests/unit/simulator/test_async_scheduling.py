"""Asynchronous scheduling: the next iteration is put together when the present one starts.

An iteration takes a millisecond per token that it computes, so that its duration tells its batch.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.view import View
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, scripted_generation
from support.iteration_times import timed

PER_TOKEN = IterationTime(host_ms=0.0, linear_ms=((1.0, 1.0), (4096.0, 4096.0)), kv_ms=0.0)
PROFILE = timed(find_profile(builtin_profiles(), "llama-3-8b", "A10"), PER_TOKEN, async_scheduling=True)
ROOMY = EngineCapacity(kv_tokens=8 * 1000, block_tokens=8, seqs_max=8, context_tokens=120)


class World:
    """An engine whose answers end after the given numbers of tokens, and its clock."""

    def __init__(self, capacity: EngineCapacity = ROOMY, **options: Any) -> None:
        self._outputs: dict[str, int] = {}
        start = scripted_generation(
            lambda call: Script(output_tokens=self._outputs[call.call_id], base=int(call.call_id, 36) << 32),
            block_tokens=capacity.block_tokens,
            context_tokens=capacity.context_tokens,
        )
        self.engine = BatchingEngine(PROFILE, capacity, start, batched_tokens_max=100, **options)
        self.ended: list[str] = []
        self._now_ns = 0

    def add(self, name: str, prompt: int, output: int, max_tokens: int = 100) -> None:
        self._outputs[name] = output
        sampling = Sampling(max_tokens=max_tokens)
        call = EngineCall(call_id=name, prompt_ids=(1,) * prompt, sampling=sampling)
        self.engine.add(call, self._now_ns)

    def tokens(self, iterations: int, added: Sequence[tuple[str, int, int]] = ()) -> list[int]:
        """Compute iterations; return how many tokens each of them computed.

        Args:
            iterations: Their number; 0 stands in the result for each that there was nothing to compute in.
            added: Requests that come during the first of them.
        """
        seen = []
        for _ in range(iterations):
            run = self.engine.plan(self._now_ns, 1)
            for name, prompt, output in added:
                self.add(name, prompt, output)
            added = ()
            if run is None:
                seen.append(0)
                continue
            seen.append((run.end_ns(1) - self._now_ns) // 1_000_000)
            self._now_ns = run.end_ns(1)
            self.ended += [each.call_id for each in self.engine.commit(1) if each.finish is not None]
        return seen

    def planned(self) -> int:
        """Return the iterations of the next run, without a limit on them."""
        run = self.engine.plan(self._now_ns, 1000)
        return 0 if run is None else run.iterations


def test_a_request_that_comes_to_an_idle_engine_starts_at_once() -> None:
    world = World()
    world.add("a", prompt=10, output=5)
    assert world.tokens(3) == [10, 1, 1]


@pytest.mark.parametrize(("async_scheduling", "seen"), [(True, [1, 1, 21, 2]), (False, [1, 21, 2, 2])])
def test_a_request_that_comes_during_an_iteration_joins_the_second_after_it(
    async_scheduling: bool, seen: list[int]
) -> None:
    world = World(async_scheduling=async_scheduling)
    world.add("a", prompt=10, output=50)
    assert world.tokens(2) == [10, 1]
    assert world.tokens(4, added=[("b", 20, 50)]) == seen


class NewestFirst:
    """A policy that runs the latest arrival, and wants to be asked again much later."""

    def decide(self, view: View) -> Decision:
        newest = view.ids[int(view.arrival_s.argmax())]
        return Decision(run=(newest,), again_s=view.now_s + 1000.0)

    def room(self, view: View) -> int:
        return 100


def test_a_batch_policy_is_asked_about_a_request_that_came_while_it_decided_without_it() -> None:
    world = World(policy=NewestFirst())
    world.add("a", prompt=10, output=50)
    assert world.tokens(2) == [10, 1]
    assert world.tokens(4, added=[("b", 20, 50)]) == [1, 1, 20, 1]


def test_an_end_that_nobody_foresaw_is_computed_once_more() -> None:
    world = World()
    world.add("a", prompt=10, output=3)
    assert world.tokens(4) == [10, 1, 1, 1]
    assert world.ended == ["a"]
    assert world.tokens(1) == [0]
    assert world.engine.counters.generation_tokens == 3


@pytest.mark.parametrize("limit", ["max_tokens", "context"])
def test_an_end_at_a_known_limit_is_not_computed_again(limit: str) -> None:
    world = World()
    if limit == "max_tokens":
        world.add("a", prompt=10, output=50, max_tokens=3)
    else:
        world.add("a", prompt=117, output=50)
        assert world.tokens(1) == [100]
    assert world.tokens(4) == [10 if limit == "max_tokens" else 17, 1, 1, 0]
    assert world.ended == ["a"]


def test_a_last_token_at_the_limit_is_foreseen_even_if_it_ends_the_answer_too() -> None:
    world = World()
    world.add("a", prompt=10, output=3, max_tokens=3)
    assert world.tokens(4) == [10, 1, 1, 0]


@pytest.mark.parametrize(("max_tokens", "after"), [(100, [1, 1, 20]), (3, [1, 20, 1])])
def test_a_slot_is_free_in_the_second_iteration_after_the_end(max_tokens: int, after: list[int]) -> None:
    """Or the next one, if nothing else is in the batch: an empty iteration takes no time."""
    world = World(replace(ROOMY, seqs_max=1))
    world.add("a", prompt=10, output=3, max_tokens=max_tokens)
    world.add("b", prompt=20, output=50)
    assert world.tokens(2) == [10, 1]
    assert world.tokens(3) == after


def test_the_slot_of_a_foreseen_end_is_not_free_beside_others_in_the_next_iteration() -> None:
    world = World(replace(ROOMY, seqs_max=2))
    world.add("a", prompt=10, output=50, max_tokens=3)
    world.add("b", prompt=10, output=50)
    world.add("c", prompt=30, output=50)
    assert world.tokens(5) == [20, 2, 2, 1, 31]
    assert world.ended == ["a"]


def test_blocks_are_free_in_the_second_iteration_after_the_end() -> None:
    world = World(replace(ROOMY, kv_tokens=120))
    world.add("a", prompt=40, output=3)
    world.add("b", prompt=10, output=50)
    world.add("c", prompt=70, output=50)
    assert world.tokens(5) == [50, 2, 2, 2, 71]


def test_an_abort_changes_the_second_iteration_after_it() -> None:
    world = World(replace(ROOMY, seqs_max=2))
    for name in ("a", "b", "c"):
        world.add(name, prompt=10, output=50)
    assert world.tokens(2) == [20, 2]
    world.engine.abort("a")
    assert world.tokens(3) == [2, 11, 2]


def test_an_aborted_request_that_was_alone_is_still_computed_once() -> None:
    world = World()
    world.add("a", prompt=10, output=50)
    assert world.tokens(2) == [10, 1]
    assert world.engine.abort("a")
    assert (world.engine.running, world.engine.kv_usage) == (0, 0)
    assert world.tokens(2) == [1, 0]


def test_sleep_drops_the_iteration_that_is_put_together() -> None:
    world = World()
    world.add("a", prompt=10, output=3)
    assert world.tokens(3) == [10, 1, 1]
    world.engine.sleep()
    world.engine.wake()
    assert world.tokens(1) == [0]


def test_the_token_of_a_request_that_is_preempted_meanwhile_arrives() -> None:
    world = World(replace(ROOMY, kv_tokens=120, seqs_max=2))
    world.add("a", prompt=40, output=50)
    world.add("b", prompt=40, output=50)
    seen: list[int] = []
    while not world.engine.counters.preemptions:
        seen += world.tokens(1)
    # Both were computed in the last iteration; b is not in the next one, which is put together already.
    assert seen[-1] == 2
    assert (world.engine.running, world.engine.waiting) == (1, 1)
    emitted = {name: len(ids) for name, ids in world.engine.collect()}
    assert emitted["a"] == emitted["b"]
    assert world.tokens(1) == [1]


def test_a_long_answer_is_few_runs() -> None:
    world = World()
    world.add("a", prompt=10, output=90)
    assert world.tokens(1) == [10]
    run = world.engine.plan(10_000_000, 1000)
    assert run is not None
    assert run.iterations == 89
    world.engine.commit(40)
    rest = world.engine.plan(run.end_ns(40), 1000)
    assert rest is not None
    assert (rest.iterations, rest.end_ns(49)) == (49, run.end_ns(89))


def test_the_profile_says_how_its_engine_schedules() -> None:
    profile = replace(PROFILE, async_scheduling=False)
    for option, seen in ((None, [10, 1, 0]), (True, [10, 1, 1])):
        world = World()
        start = world.engine._start
        world.engine = BatchingEngine(profile, ROOMY, start, async_scheduling=option)
        world.add("a", prompt=10, output=2)
        assert world.tokens(3) == seen


def test_a_run_ends_before_the_iteration_that_a_new_request_joins() -> None:
    world = World()
    world.add("a", prompt=10, output=50)
    assert world.tokens(1) == [10]
    assert world.planned() == 49
    world.add("b", prompt=20, output=50)
    assert world.planned() == 1
    assert world.tokens(3) == [1, 21, 2]
    assert world.planned() == 46


def test_a_full_batch_runs_on_whoever_waits() -> None:
    world = World(replace(ROOMY, seqs_max=1))
    world.add("a", prompt=10, output=50)
    assert world.tokens(1) == [10]
    world.add("b", prompt=10, output=50)
    assert world.planned() == 49


def test_a_run_ends_where_a_foreseen_end_frees_a_slot() -> None:
    world = World(replace(ROOMY, seqs_max=2))
    for name, limit in (("a", 3), ("b", 100), ("c", 100)):
        world.add(name, prompt=10, output=50, max_tokens=limit)
    assert world.tokens(3) == [20, 2, 2]
    assert world.ended == ["a"]
    assert world.planned() == 1
    assert world.tokens(2) == [1, 11]


def test_a_run_ends_where_a_slot_gets_free_for_who_waits() -> None:
    world = World(replace(ROOMY, seqs_max=2))
    for name, output in (("a", 3), ("b", 50), ("c", 50)):
        world.add(name, prompt=10, output=output)
    assert world.tokens(1) == [20]
    assert world.planned() == 2
    assert world.tokens(2) == [2, 2]
    assert world.ended == ["a"]
    assert world.planned() == 1
    assert world.tokens(3) == [2, 11, 2]
    assert world.planned() == 44  # b has 6 of its 50 tokens


def test_a_run_ends_where_an_abort_makes_room_for_who_waits() -> None:
    world = World(replace(ROOMY, seqs_max=2))
    for name in ("a", "b", "c"):
        world.add(name, prompt=10, output=50)
    assert world.tokens(2) == [20, 2]
    assert world.planned() == 48
    world.engine.abort("a")
    assert world.planned() == 1


def test_decodes_and_prompts_share_one_budget() -> None:
    world = World()
    world.add("a", prompt=10, output=50)
    assert world.tokens(2) == [10, 1]
    assert world.tokens(5, added=[("b", 110, 5)]) == [1, 1, 100, 12, 2]
