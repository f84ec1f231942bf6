"""A model that waits is visited in bounded time, if that takes little of it."""

import pytest

from qlm.agents.core.scheduling.visits.backlog import NO_BACKLOG
from qlm.agents.core.scheduling.visits.candidate import Candidate
from qlm.agents.core.scheduling.visits.decision import decide
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import Leave, Remain
from qlm.domain.ids import ModelId

B, C = ModelId("b"), ModelId("c")


def waiting(
    waits_s: float, *, model: ModelId = B, swap_s: float = 1.0, work_s: float = 0.1, priority: int = 0
) -> Candidate:
    """Return a model whose requests are worth nothing, and have waited."""
    return Candidate(
        model=model,
        backlog=NO_BACKLOG,
        swap_s=swap_s,
        waiting=1,
        all_work_s=work_s,
        waits_s=waits_s,
        priority=priority,
    )


def busy(*, awake_s: float = 1e3, priority: int | None = None) -> Present:
    """Return a model whose absence would lose a hundred requests."""
    return Present(
        backlog=NO_BACKLOG,
        back_s=1.0,
        awake_s=awake_s,
        running_slack_s=(0.5,) * 100,
        starved_after_s=300.0,
        priority=priority,
    )


def test_a_model_that_has_waited_too_long_is_visited_although_that_loses_more() -> None:
    assert isinstance(decide(busy(), [waiting(299.0)]), Remain)
    assert decide(busy(), [waiting(301.0)]) == Leave(model=B, why="requests for b have waited for 301 s")


def test_the_swaps_of_such_visits_take_a_fifth_of_the_time_at_most() -> None:
    other = waiting(0.0, model=C, swap_s=39.0)
    assert isinstance(decide(busy(), [waiting(599.0, swap_s=79.0), other]), Remain)
    assert isinstance(decide(busy(), [waiting(601.0, swap_s=79.0), other]), Leave)


def test_they_end_no_visit_before_its_least_length_and_none_of_a_higher_priority() -> None:
    assert isinstance(decide(busy(awake_s=2.0), [waiting(301.0)]), Remain)
    assert isinstance(decide(busy(priority=0), [waiting(301.0, priority=1)]), Remain)
    assert isinstance(decide(busy(priority=1), [waiting(301.0, priority=1)]), Leave)


@pytest.mark.parametrize(("work_s", "kind"), [(29.0, Leave), (31.0, Remain)])
def test_a_model_is_visited_only_if_a_short_visit_serves_all_that_waits(work_s: float, kind: type) -> None:
    """Under overload, visits in turn made 92 swaps of 8 in a drawn scenario, and served a seventh less."""
    assert isinstance(decide(busy(), [waiting(1e4, work_s=work_s)]), kind)
