"""Views from plain rows, and levers from decisions."""

from math import inf

import pytest

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.sent_objective import NO_OBJECTIVE, Objective
from qlm.agents.batching.view import NO_READER, Place
from qlm.agents.vllm_scheduler.learned import Learned
from qlm.agents.vllm_scheduler.levers import IDLE_ASK_S, levers, open_part
from qlm.agents.vllm_scheduler.streamed import StreamedRequest
from qlm.agents.vllm_scheduler.views import EngineRow, view_of
from qlm.domain.ids import RequestId
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_views import MACHINE, Row, view


def row(id: str, place: Place, objective: Objective = NO_OBJECTIVE, **more: int) -> EngineRow:
    facts = {"prompt": 100, "output": 5, "output_max": 50, "blocks": 7, "preemptions": 1, **more}
    return EngineRow(id=id, place=place, stream=StreamedRequest(objective, 10.0), **facts)


def test_tokens_shown_before_are_no_prompt() -> None:
    learned = Learned(IterationTime.constant(9.0))
    made = view_of(
        12.0,
        [
            row("a", Place.INSIDE, Objective(age_s=1, ttft_s=2.0, rate=4.0, shown=30, rank=5, pinned=True)),
            row("b", Place.OUTSIDE, Objective(left_s=20.0), output=0, blocks=0),
        ],
        MACHINE,
        learned,
    )
    assert made.prompt.tolist() == [70, 100]
    assert made.generated.tolist() == [35, 0]
    assert made.arrival_s.tolist() == [9.0, 10.0]
    assert made.rate.tolist() == [4.0, NO_READER]
    assert made.ttft_s.tolist() == [2.0, inf]
    assert made.deadline_s.tolist() == [inf, 30.0]
    assert (made.rank.tolist(), made.pinned.tolist()) == ([5, 0], [True, False])
    assert made.blocks.tolist() == [7, 0]
    assert made.machine.iteration == IterationTime.constant(9.0)
    assert made.left_max.tolist() == [45.0, 50.0]
    assert (made.left_mean <= made.left_max).all()


def test_a_view_of_no_request_is_empty() -> None:
    assert len(view_of(0.0, [], MACHINE, Learned()).ids) == 0


def decision(*run: str, hold: str = "", again_s: float | None = None) -> Decision:
    ids = tuple(RequestId(id) for id in run)
    return Decision(ids, frozenset(RequestId(id) for id in hold), again_s=again_s)


WORLD = view(
    Row("i", Place.INSIDE), Row("h", Place.HELD), Row("p", Place.INSIDE, pinned=True),
    Row("l", Place.LOADING), Row("o"), now_s=3.0,
)  # fmt: skip


def test_who_is_inside_and_not_wanted_is_preempted_unless_pinned_or_loading() -> None:
    pulled = levers(decision("o"), WORLD)
    assert pulled.preempt == ("i", "h")
    assert pulled.order == {"o": 0}
    assert pulled.again_s == inf


def test_ids_that_are_gone_are_left_out() -> None:
    pulled = levers(decision("gone", "h", "i", hold="hx", again_s=3.5), WORLD)
    assert list(pulled.order) == ["h", "i"]
    assert pulled.hold == {"h"}
    assert pulled.again_s == 3.5


def test_a_policy_that_lets_nobody_run_is_asked_again() -> None:
    alone = view(Row("a", Place.INSIDE), Row("b"), now_s=3.0)
    assert levers(decision(), alone).again_s == pytest.approx(3.0 + IDLE_ASK_S)
    assert levers(decision("a", hold="a"), alone).again_s == pytest.approx(3.0 + IDLE_ASK_S)
    assert levers(decision("a"), alone).again_s == inf


def test_the_gate_opens_in_the_order_of_the_policy() -> None:
    order = {"c": 0, "a": 1, "b": 2}
    waiting = [("a", 5), ("b", 2), ("c", 4), ("d", 1)]
    assert open_part(waiting, order, 6, skips=False) == ["c", "a", "b"], "vLLM itself stops at the first"
    assert open_part(waiting, order, 6, skips=True) == ["c", "b"]
