"""A class that is overloaded: which of its requests start."""

import pytest

from qlm.agents.core.stats.demotion_runs import OVERLOAD_RATIO, DemotionRuns
from support.agent_bench import S
from support.requests import a_request

ANSWER = a_request("answer", deadline_ms=30_000).cls


def run_of(seconds: float, *, every_s: float = 1.0) -> DemotionRuns:
    """Return a run of demotions of that length that ends at that time."""
    runs = DemotionRuns()
    for number in range(round(seconds / every_s) + 1):
        runs.demoted(ANSWER, round(number * every_s * S))
    return runs


@pytest.mark.parametrize(("seconds", "share"), [(0.0, 0.0), (15.0, 0.5), (30.0, 1.0), (300.0, 1.0)])
def test_the_lead_grows_with_the_time_for_which_requests_have_been_too_late(
    seconds: float, share: float
) -> None:
    ratio = run_of(seconds).lead_ratio(ANSWER, round(seconds * S))
    assert ratio == pytest.approx(1 + (OVERLOAD_RATIO - 1) * share)


def test_without_demotions_for_an_objective_the_overload_is_over() -> None:
    runs = run_of(60.0)
    assert runs.lead_ratio(ANSWER, 89 * S) == OVERLOAD_RATIO
    assert runs.lead_ratio(ANSWER, 91 * S) == 1.0
    runs.demoted(ANSWER, 120 * S)
    assert runs.lead_ratio(ANSWER, 120 * S) == 1.0, "a new run"


def test_classes_have_runs_of_their_own() -> None:
    other = a_request("other", deadline_ms=20_000).cls
    assert run_of(60.0).lead_ratio(other, 60 * S) == 1.0
