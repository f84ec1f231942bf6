"""The table of the life cycle: every phase is reached, every request can leave, nothing else decides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.core.lifecycle import TABLE, Cause, advance
from qlm.agents.core.request import GENERATING, Disposition, Phase, TrackedRequest
from qlm.agents.core.request_table import RequestTable
from qlm.domain.outcome import Outcome
from scripts.preemption_path import assignments
from scripts.preemption_path import main as preemption_path
from support.agent_bench import delivery_of
from support.requests import a_request

STOPPED = (Phase.ABORTING, Phase.CLOSING)


def test_every_phase_is_reached_from_the_first() -> None:
    reached = {Phase.LEASING}
    for _ in Phase:
        steps = [step for phase in reached for step in TABLE[phase].values()]
        reached |= {step.phase for step in steps if step.phase is not None}
    assert reached == set(Phase)


def test_every_cause_is_used() -> None:
    assert {cause for steps in TABLE.values() for cause in steps} == set(Cause)


@pytest.mark.parametrize("phase", Phase)
def test_a_request_can_leave_from_every_phase_by_itself_and_when_its_lease_is_lost(phase: Phase) -> None:
    assert TABLE[phase][Cause.FORGOTTEN].phase is None
    reachable = {phase}
    for _ in Phase:
        steps = [
            step for each in reachable for cause, step in TABLE[each].items() if cause is not Cause.FORGOTTEN
        ]
        if any(step.phase is None for step in steps):
            return
        reachable |= {step.phase for step in steps if step.phase is not None}
    raise AssertionError(f"no way out of {phase}")


def test_only_the_lease_and_the_log_lead_out() -> None:
    leaving = {cause for steps in TABLE.values() for cause, step in steps.items() if step.phase is None}
    assert leaving == {Cause.FORGOTTEN, Cause.LOGGED}
    assert {phase for phase, steps in TABLE.items() if Cause.LOGGED in steps} == {Phase.CLOSING}


def test_an_outcome_comes_with_the_disposition_to_end() -> None:
    for steps in TABLE.values():
        for step in steps.values():
            assert step.outcome is None or step.disposition is Disposition.END


def tracked() -> TrackedRequest:
    request = a_request()
    return TrackedRequest(request, delivery=delivery_of(request), delivered_ns=0, group=None)


@given(st.lists(st.sampled_from(Cause), max_size=40))
def test_any_history_keeps_phase_disposition_and_indexes_in_step(history: list[Cause]) -> None:
    requests, request = RequestTable(), tracked()
    requests.add(request)
    for cause in history:
        steps = TABLE[request.phase]
        if cause not in steps or (cause is Cause.STOPPED and request.exit.disposition is None):
            continue
        before = request.phase
        actions = advance(requests, request, cause, outcome=Outcome.CANCELLED)
        assert bool(actions) == (before is Phase.RUNNING and steps[cause].phase is Phase.ABORTING)
        if steps[cause].phase is None:
            assert not requests.all and not requests.output.touched
            return
        assert request.phase is steps[cause].phase
        assert (request.exit.disposition is None) <= (request.phase not in STOPPED)
        assert (request.exit.disposition is None) >= (request.phase in (Phase.READY, Phase.RUNNING))
        assert request.ended == (request.exit.disposition is Disposition.END)
        assert not request.ended or request.exit.outcome is not None
        assert requests.kv.running == (request.phase in GENERATING)
        assert (request.id in requests.output.touched) or request.phase is not Phase.CLOSING


def test_phases_and_decisions_are_written_by_the_life_cycle_only() -> None:
    assert list(assignments()) == []


def test_a_preemption_passes_few_files() -> None:
    assert preemption_path() == 0
