"""What a departure is weighed with while answers run: the rest of each of them."""

import pytest

from qlm.agents.core.events import QueueRead
from qlm.agents.core.scheduling.visits.backlog import NO_BACKLOG, Backlog, HopefulRequests
from qlm.agents.core.scheduling.visits.candidate import Candidate
from qlm.agents.core.scheduling.visits.decision import decide
from qlm.agents.core.scheduling.visits.forecasts import Forecasts
from qlm.agents.core.scheduling.visits.inputs import present
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import Leave, Remain
from qlm.agents.core.state import AgentSettings
from qlm.domain.ids import ModelId
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from support.agent_bench import HOLDER, Bench, M
from support.requests import a_request

TOKEN_S = 2.0
LEFT = 7
"""Output tokens that a request may still have: at most eight, less one."""


def waiting() -> Candidate:
    """Return five requests of another model, one every 5 s from 5 s on."""
    part = HopefulRequests.of(
        priority=0, requests=5, first_s=5.0, last_s=25.0, service_s=0.1, objective_s=60.0
    )
    assert part is not None
    return Candidate(model=ModelId("b"), backlog=Backlog([part]), swap_s=1.0, waiting=5)


def awake(ends_s: float) -> Present:
    return Present(backlog=NO_BACKLOG, back_s=1.0, awake_s=100.0, evicting_s=0.1, ends_s=ends_s)


def test_no_request_is_evicted_if_the_others_lose_little_until_all_answers_have_ended() -> None:
    """Found in a drawn scenario: answers of a model were evicted 6 s after its start of 45 s.

    A delay of 30 s would have cost all that waited elsewhere. A delay until the answers had ended would have
    cost less than one of them.
    """
    assert isinstance(decide(awake(ends_s=3.0), [waiting()]), Remain)
    assert isinstance(decide(awake(ends_s=20.0), [waiting()]), Leave)
    assert isinstance(decide(awake(ends_s=0.0), [waiting()]), Leave)


def presence(*, answer_s: float) -> Present:
    """Describe an agent with one running request, 60 s before its deadline."""
    bench = Bench(settings=AgentSettings(visits=True))
    request = a_request("r", deadline_ms=60_000, arrival_ns=bench.now_ns)
    bench.start(request, output=(1,))
    bench.at_pace(token_s=TOKEN_S, service_s=16.0)
    sent = ClassForecast(cls=request.cls, service_s=0.1, answer_s=answer_s, rate_rps=0.0)
    bench.send(QueueRead(queue=VirtualQueue(instance=HOLDER.instance, groups=(), forecasts=(sent,))))
    state = bench.agent.state
    return present(state, M, Forecasts(state), bench.now_ns)


@pytest.mark.parametrize(("answer_s", "rest_s"), [(100.0, LEFT * TOKEN_S), (9.0, 9.0)])
def test_an_answer_that_has_begun_can_be_away_only_for_what_its_rest_leaves(
    answer_s: float, rest_s: float
) -> None:
    """Until then the rest of a begun answer counted as nothing, and its eviction as harmless."""
    assert presence(answer_s=answer_s).running_slack_s == pytest.approx((60 - rest_s,))


def test_a_departure_waits_at_most_for_the_rest_of_the_running_answers() -> None:
    here = presence(answer_s=100.0)
    assert here.ends_s == pytest.approx(LEFT * TOKEN_S)
    assert here.drain_s == 0.0
