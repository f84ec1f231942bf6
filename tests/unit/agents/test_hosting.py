"""An agent that hosts a batch policy: it aborts who is not to run, and resumes it later."""

import pytest

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.policies.registry import batch_policy
from qlm.agents.batching.view import View
from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.request import PREEMPTIONS_MAX, Phase, TrackedRequest
from qlm.agents.core.scheduling.hosting.host import BatchHost
from qlm.domain.actions import (
    ReportParked,
    ReportResumed,
)
from qlm.domain.ids import RequestId
from support.agent_bench import M, S, delivery_of
from support.hosting_bench import HostingBench, due, full
from support.policy_engine import Recorded
from support.requests import a_request


def test_an_urgent_request_takes_the_slot_of_the_one_that_is_due_last_which_resumes_with_its_tokens() -> None:
    bench = full()
    assert bench.arrive(due("urgent", 20, bench)) == [], "its slot is not free yet"
    assert bench.aborted() == ["late"]
    assert bench.ends("late", "abort") == ["urgent"]
    assert [each.why for each in bench.take(ReportParked)] == ["evicted for its batch policy"]
    assert bench.phase("late") is Phase.READY and bench.log[RequestId("late")] == [1, 2, 3]
    first = bench.calls["late"].call
    assert bench.ends("urgent") == ["late"]
    again = bench.calls["late"].call
    assert again.prompt_ids == (*first.prompt_ids, 1, 2, 3)
    assert again.sampling.max_tokens == first.sampling.max_tokens - 3
    assert [each.id for each in bench.take(ReportResumed)] == ["late"]
    bench.tokens("late", 7)
    bench.ends("late")
    bench.ends("soon")
    assert bench.log == {"late": [1, 2, 3, 7], "soon": [4, 5, 6], "urgent": []}
    assert set(bench.outcomes) == {"late", "soon", "urgent"}


def test_a_request_that_is_due_later_waits_and_starts_when_a_slot_is_free() -> None:
    bench = full()
    assert bench.arrive(due("patient", 900, bench)) == []
    bench.later(5.0)
    assert bench.aborted() == [] and bench.phase("patient") is Phase.READY
    assert bench.ends("soon") == ["patient"]


@pytest.mark.parametrize("name", ["edf", "virtual-queue"])
def test_at_most_one_decision_in_a_second_preempts(name: str) -> None:
    bench = full(name)
    bench.arrive(due("first", 20, bench))
    assert bench.aborted() == ["late"]
    bench.ends("late", "abort")
    bench.later(0.1)
    bench.arrive(due("second", 10, bench))
    assert bench.aborted() == []
    bench.later(0.5)
    assert bench.aborted() == []
    bench.later(0.5)
    assert bench.aborted() == ["soon"], "asked again when it may preempt"


def test_a_slot_that_is_free_meanwhile_goes_to_the_most_urgent() -> None:
    bench = full()
    bench.arrive(due("first", 20, bench))
    bench.ends("late", "abort")
    bench.arrive(due("second", 10, bench))
    assert bench.ends("first") == ["second"]


def test_a_request_that_cannot_be_resumed_exactly_is_never_aborted() -> None:
    bench = HostingBench("edf")
    bench.arrive(due("pinned", 600, bench, presence_penalty=1.0))
    bench.arrive(due("soon", 300, bench))
    bench.arrive(due("urgent", 20, bench))
    assert bench.aborted() == ["soon"]


def test_a_request_that_was_preempted_too_often_is_not_aborted_again() -> None:
    bench = HostingBench("edf")
    bench.arrive(due("often", 600, bench), preemptions=PREEMPTIONS_MAX)
    bench.arrive(due("soon", 300, bench))
    bench.arrive(due("urgent", 20, bench))
    assert bench.aborted() == ["soon"]


def test_turns_end_at_the_bound_of_preemptions() -> None:
    """Two requests of which the one that waits is always due first."""
    bench = HostingBench("edf", seqs_max=1)
    bench.arrive(due("victim", 600, bench))
    for turn in range(PREEMPTIONS_MAX + 1):
        bench.later(2.0)
        bench.arrive(due(f"urgent-{turn}", 20, bench))
        if turn == PREEMPTIONS_MAX:
            assert bench.aborted() == []
            break
        assert bench.aborted() == ["victim"]
        assert bench.ends("victim", "abort") == [f"urgent-{turn}"]
        assert bench.ends(f"urgent-{turn}") == ["victim"]


def test_a_better_rank_preempts_the_worst_and_an_equal_one_does_not() -> None:
    bench = HostingBench("virtual-queue")
    bench.arrive(due("plain", 300, bench))
    bench.arrive(due("low", 20, bench, priority=5))
    bench.arrive(due("same", 300, bench))
    assert bench.aborted() == ["low"], "equal ranks are in the order of arrival, and low has the worst"
    assert bench.ends("low", "abort") == ["same"]
    bench.later(2.0)
    bench.arrive(due("other", 300, bench, arrival_ns=S))
    bench.later(2.0)
    assert bench.aborted() == []
    assert bench.ends("plain") == ["other"]
    assert bench.ends("same") == ["low"]


def test_annealing_runs_one_batch_after_the_other_and_aborts_none() -> None:
    bench = HostingBench("annealing")
    assert bench.arrive(due("first", 600, bench)) == ["first"]
    for id in ("a", "b", "c"):
        assert bench.arrive(due(id, 60, bench)) == [], "a slot is free, and the batch is not over"
    bench.later(3.0)
    assert bench.aborted() == []
    second = bench.ends("first")
    assert len(second) == 2
    assert bench.ends(second[0]) == [], "the batch is not over"
    assert len(bench.ends(second[1])) == 1


def test_annealing_continuous_fills_single_slots() -> None:
    bench = full("annealing-continuous")
    assert bench.arrive(due("urgent", 60, bench)) == []
    assert bench.ends("late") == ["urgent"]
    assert bench.aborted() == []


def test_kv_blocks_are_never_exceeded() -> None:
    """Of 64 blocks the two running ones take 24 each: there is no room for a third until one is gone."""
    bench = HostingBench("edf", seqs_max=8, kv_tokens=64 * 16)
    bench.arrive(due("a", 600, bench, prompt_tokens=24 * 16 - 8))
    bench.arrive(due("b", 300, bench, prompt_tokens=24 * 16 - 8))
    assert bench.arrive(due("c", 20, bench, prompt_tokens=24 * 16 - 8)) == []
    assert bench.aborted() == ["a"]
    assert bench.arrive(due("small", 30, bench)) == ["small"], "it fits beside them"
    kv = bench.agent.state.requests.kv
    assert bench.ends("a", "abort") == ["c"]
    assert kv.running == 3 and kv.blocks <= 64
    assert bench.phase("a") is Phase.READY


def test_a_request_as_large_as_the_cache_runs_alone_and_one_that_is_larger_ends() -> None:
    bench = HostingBench("edf", kv_tokens=200 * 16)
    bench.arrive(due("other", 600, bench))
    bench.arrive(due("large", 20, bench, prompt_tokens=199 * 16 + 8))
    assert bench.aborted() == ["other"]
    assert bench.ends("other", "abort") == ["large"]
    assert bench.arrive(due("larger", 20, bench, prompt_tokens=201 * 16)) == []
    bench.store_appends()
    assert bench.outcomes == {"larger": "failed"}


def test_a_request_that_has_grown_is_not_replaced_by_a_smaller_one_that_is_less_urgent() -> None:
    bench = HostingBench("edf", kv_tokens=64 * 16)
    bench.arrive(due("a", 600, bench, prompt_tokens=29 * 16))
    bench.arrive(due("b", 300, bench, prompt_tokens=29 * 16))
    bench.tokens("a", *range(60))
    bench.arrive(due("c", 900, bench, prompt_tokens=29 * 16))
    bench.later(3.0)
    assert bench.aborted() == []
    bench.arrive(due("d", 20, bench, prompt_tokens=29 * 16))
    assert bench.aborted() == ["a"]
    assert bench.ends("a", "abort") == ["d"]


def test_the_policy_is_asked_at_arrivals_and_ends_and_when_it_wants_and_else_never() -> None:
    bench = full()
    bench.policy.views.clear()
    bench.arrive(due("patient", 900, bench))
    assert len(bench.policy.views) == 1
    for _ in range(8):
        bench.later(0.1)
        bench.tokens("late", 1)
        bench.store_appends()
    assert len(bench.policy.views) == 2, "after a second"
    assert bench.ends("soon") == ["patient"]
    assert len(bench.policy.views) == 3
    bench.later(10.0)
    bench.ends("late")
    assert len(bench.policy.views) == 3, "no request waits any more"


def test_a_preemption_and_a_resumption_are_no_reason_to_ask() -> None:
    bench = full("virtual-queue")
    bench.policy.views.clear()
    bench.arrive(due("urgent", 20, bench))
    bench.ends("late", "abort")
    assert bench.phase("urgent") is Phase.RUNNING and bench.phase("late") is Phase.READY
    assert len(bench.policy.views) == 1


class Fixed:
    """A policy that always decides the same."""

    def __init__(self, *run: str, again_s: float | None = None) -> None:
        self.decision = Decision(run=tuple(map(RequestId, run)))
        self.again_s = again_s

    def decide(self, view: View) -> Decision:
        return self.decision._replace(again_s=self.again_s and view.now_s + self.again_s)

    def room(self, view: View) -> int:
        return 8


def test_if_a_policy_lets_nothing_run_the_most_urgent_request_runs_alone() -> None:
    bench = HostingBench(policy=Fixed)
    assert bench.arrive(due("a", 600, bench)) == ["a"]
    bench.arrive(due("b", 300, bench))
    bench.arrive(due("c", 20, bench))
    assert bench.started() == [] and bench.aborted() == [], "none is aborted for no other"
    assert bench.ends("a") == ["c"]
    assert bench.ends("c") == ["b"]


def test_a_policy_that_leaves_out_a_pinned_request_does_not_stop_it() -> None:
    bench = HostingBench(policy=lambda: Fixed("new"))
    bench.arrive(due("pinned", 600, bench, presence_penalty=1.0))
    bench.arrive(due("new", 300, bench))
    bench.later(2.0)
    assert bench.aborted() == []


def test_a_policy_that_wants_to_decide_all_the_time_does_so_once_in_a_second() -> None:
    bench = HostingBench(policy=lambda: Fixed("a", again_s=0.001), seqs_max=1)
    bench.arrive(due("a", 600, bench))
    bench.arrive(due("b", 300, bench))
    bench.policy.views.clear()
    for _ in range(100):
        bench.later(0.05)
    assert 4 <= len(bench.policy.views) <= 5


def test_a_request_that_left_and_came_again_is_another_one() -> None:
    bench = HostingBench()
    first, second = (
        TrackedRequest(
            due("r", 60, bench), delivery=delivery_of(a_request("r"), n), delivered_ns=0, group=None
        )
        for n in range(2)
    )
    host = BatchHost(Recorded(batch_policy("edf")))
    assert host.follow([first], 0)
    assert not host.follow([first], 0)
    assert host.follow([second], 0)


def test_the_watchdog_looks_at_each_request_since_all_that_were_submitted_are_served() -> None:
    costs = OperationCosts(speed={M: EngineSpeed(iteration_s=0.2, batched_tokens_max=512)})
    bench = HostingBench(costs=costs)
    bench.arrive(due("stuck", 600, bench))
    bench.arrive(due("fine", 300, bench))
    bench.tokens("stuck", 1)
    for _ in range(60):
        bench.later(0.5)
        bench.tokens("fine", 1)
    assert bench.aborted() == ["stuck"]
