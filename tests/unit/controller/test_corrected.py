"""Corrected forecasts of a request that arrives now."""

from dataclasses import replace

import pytest

from qlm.controller.core.estimating.snapshot import take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.controller.core.expected.corrected import CorrectedForecasts, Expected
from qlm.controller.core.expected.log import NOTHING_FORECAST, ForecastLog
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId
from qlm.planner.problem import Plan
from qlm.rct_estimator.forecast_errors import Turn
from qlm.rct_estimator.normal import Normal
from support.estimating import CHAT, NOW_NS, OTHER, seen, steady_fleet, view_of

WAIT, FIRST_TOKEN, ANSWER = Normal(8.0, 1.0), Normal(0.5, 0.1), Normal(6.0, 1.0)


def late(turn: Turn) -> ForecastLog:
    """Return a log of waits and ends that were forecast after 8 s and took 40 s."""
    log = NOTHING_FORECAST
    for _ in range(10):
        log = replace(log, waits=log.waits.after(turn, 8.0, 40.0), ends=log.ends.after(turn, 8.0, 40.0))
    return log


def arriving(cls: RequestClass, log: ForecastLog) -> Expected:
    view, fleet = view_of(seen(CHAT)), steady_fleet(16)
    state = learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
    snapshot = take_snapshot(view, now_ns=NOW_NS, fleet=fleet, state=state)
    forecasts = CorrectedForecasts(snapshot=snapshot, plan=Plan(queues={}), models={}, waits={}, log=log)
    return forecasts.arriving(cls, InstanceId("gpu-0"), WAIT, FIRST_TOKEN, ANSWER)


@pytest.mark.parametrize(("cls", "turn"), [(CHAT, Turn.ALONE), (OTHER, Turn.SWAP)])
def test_no_answer_ends_before_its_first_token(cls: RequestClass, turn: Turn) -> None:
    """Ends of another horizon than the waits are not known to be late."""
    expected = arriving(cls, late(turn))
    assert expected.leaves.mean > 30.0
    assert expected.ends.mean >= expected.first_token.mean
    assert expected.ends.var >= expected.first_token.var


def test_an_end_after_the_first_token_stands() -> None:
    expected = arriving(CHAT, NOTHING_FORECAST)
    assert expected.first_token == WAIT + FIRST_TOKEN
    assert expected.ends == WAIT + ANSWER
