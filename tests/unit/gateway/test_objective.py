import pytest
from pydantic import ValidationError

from qlm.domain.errors import InvalidValueError
from qlm.domain.slo import BatchSlo, DeadlineSlo, OnMiss, ReadingSlo, Slo, TokenSlo
from qlm.gateway.api.bodies.parts import SloBody
from qlm.gateway.api.objective import Objective, choose, p_met_min, task_deadline_ns, tier_of
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.tasks.urgency import Urgency

LIMITS = GatewayLimits()
NOW_NS = 1_800_000_000_000_000_000
NOW_S = 1_800_000_000


def chosen(
    slo: dict[str, object] | None = None, headers: dict[str, str] | None = None, tier: str = "auto"
) -> Objective:
    body = None if slo is None else SloBody.model_validate(slo)
    return choose(body, headers or {}, tier, LIMITS, NOW_NS)


@pytest.mark.parametrize(
    ("slo", "read"),
    [
        ({"deadline_ms": 500}, DeadlineSlo(deadline_ms=500)),
        ({"deadline_at": NOW_S + 2}, DeadlineSlo(deadline_ms=2000)),
        ({"deadline_at": "2027-01-15T08:00:05Z"}, DeadlineSlo(deadline_ms=5000)),
        ({"deadline_at": "2027-01-15T09:00:05+01:00"}, DeadlineSlo(deadline_ms=5000)),
        ({"ttft_ms": 100}, TokenSlo(ttft_ms=100)),
        ({"ttft_ms": 100, "tpot_ms": 20}, TokenSlo(ttft_ms=100, tpot_ms=20)),
        ({"ttft_ms": 100, "tokens_per_s": 5}, ReadingSlo(ttft_ms=100, tokens_per_s=5)),
        ({"reader": "reading"}, ReadingSlo(ttft_ms=1000, tokens_per_s=4.8)),
        ({"reader": "speech", "ttft_ms": 500}, ReadingSlo(ttft_ms=500, tokens_per_s=3.3)),
        ({}, LIMITS.default_slo),
    ],
    ids=str,
)
def test_a_body_may_ask_for_each_kind(slo: dict[str, object], read: Slo) -> None:
    assert chosen(slo).slo == read


@pytest.mark.parametrize(
    "slo",
    [
        {"deadline_ms": 0},
        {"deadline_ms": -1},
        {"deadline_ms": 1e15},
        {"deadline_at": NOW_S - 1},
        {"deadline_at": "2020-01-01T00:00:00Z"},
        {"deadline_at": "0001-01-01T00:00:00+23:59"},
        {"deadline_at": "9999-12-31T23:59:59-23:59"},
        {"deadline_at": "soon"},
        {"deadline_at": "2027-01-15T08:00:05"},
        {"deadline_ms": 5, "ttft_ms": 6},
        {"deadline_ms": 5, "reader": "reading"},
        {"deadline_ms": 5, "tpot_ms": 5},
        {"deadline_ms": 9000, "deadline_at": NOW_S + 5, "ttft_ms": 5},
        {"reader": "reading", "tokens_per_s": 5, "ttft_ms": 5},
        {"reader": "reading", "tpot_ms": 5},
        {"tpot_ms": 5},
        {"tokens_per_s": 5},
        {"ttft_ms": 5, "tpot_ms": 5, "tokens_per_s": 5},
        {"ttft_ms": 5, "tokens_per_s": 0},
        {"deadline_ms": 5, "deadline_at": NOW_S + 5},
    ],
    ids=str,
)
def test_impossible_or_contradictory_objectives_are_refused(slo: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError, match="slo"):
        chosen(slo)


@pytest.mark.parametrize(
    ("beside", "slo"),
    [
        ({"ttft_ms": 500, "tokens_per_s": 10}, ReadingSlo(ttft_ms=500, tokens_per_s=10)),
        ({"ttft_ms": 500, "tpot_ms": 50}, TokenSlo(ttft_ms=500, tpot_ms=50)),
        ({"reader": "speech"}, ReadingSlo(ttft_ms=1000, tokens_per_s=3.3)),
    ],
    ids=str,
)
def test_a_deadline_may_come_beside_an_objective_on_tokens(beside: dict[str, object], slo: Slo) -> None:
    assert chosen(beside | {"deadline_ms": 9000}) == Objective(slo, deadline_ms=9000)
    assert chosen(beside | {"deadline_at": NOW_S + 9}) == Objective(slo, deadline_ms=9000)
    assert chosen(beside).deadline_ms is None
    assert chosen({"deadline_ms": 9000}).deadline_ms is None


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        (
            {"deadline_ms": 400, "ttft_ms": 500},
            r"slo\.deadline_ms is 400\.0; expected at least slo.ttft_ms, 500",
        ),
        (
            {"deadline_ms": 400, "reader": "reading"},
            r"slo\.deadline_ms is 400\.0; expected at least 1000, the default first token in ms; send slo",
        ),
        (
            {"deadline_at": NOW_S + 0.5, "reader": "reading"},
            r"slo\.deadline_at is '500 ms from now'; expected at least 1000, the default first token in ms",
        ),
    ],
    ids=str,
)
def test_a_deadline_before_the_first_token_is_refused_by_what_was_sent(
    slo: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=f"^{message}"):
        chosen(slo)


def test_on_miss_is_taken_over() -> None:
    assert chosen({"deadline_ms": 5, "on_miss": "drop"}).on_miss is OnMiss.DROP


@pytest.mark.parametrize(
    ("headers", "read"),
    [
        ({"x-qlm-deadline-ms": "250.5"}, DeadlineSlo(deadline_ms=250.5)),
        ({"x-slo-ttft-ms": "200"}, TokenSlo(ttft_ms=200)),
        ({"x-slo-tokens-per-s": "4.8"}, ReadingSlo(ttft_ms=1000, tokens_per_s=4.8)),
        (
            {"x-slo-ttft-ms": "200", "x-llm-d-slo-tokens-per-s": "3.3"},
            ReadingSlo(ttft_ms=200, tokens_per_s=3.3),
        ),
        ({"x-slo-ttft-ms": "200", "x-slo-tpot-ms": "50"}, TokenSlo(ttft_ms=200, tpot_ms=50)),
        ({"x-llm-d-slo-ttft-ms": "200", "x-llm-d-slo-tpot-ms": "50"}, TokenSlo(ttft_ms=200, tpot_ms=50)),
    ],
    ids=str,
)
def test_headers_may_ask(headers: dict[str, str], read: Slo) -> None:
    assert chosen(headers=headers).slo == read


@pytest.mark.parametrize("value", ["0", "-5", "nan", "inf", "1e300", "", "abc"])
@pytest.mark.parametrize("name", ["x-qlm-deadline-ms", "x-slo-ttft-ms"])
def test_a_senseless_header_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(InvalidValueError, match=name):
        chosen(headers={name: value})


def test_tpot_needs_ttft_also_beside_a_deadline() -> None:
    with pytest.raises(InvalidValueError, match="x-slo-tpot-ms is 5"):
        chosen(headers={"x-slo-tpot-ms": "5"})
    with pytest.raises(InvalidValueError, match="x-slo-tpot-ms is 5"):
        chosen(headers={"x-slo-tpot-ms": "5", "x-qlm-deadline-ms": "9000"})


@pytest.mark.parametrize(
    ("beside", "slo"),
    [
        ({"x-slo-ttft-ms": "500"}, TokenSlo(ttft_ms=500)),
        ({"x-slo-ttft-ms": "500", "x-slo-tpot-ms": "50"}, TokenSlo(ttft_ms=500, tpot_ms=50)),
        ({"x-slo-tokens-per-s": "10"}, ReadingSlo(ttft_ms=1000, tokens_per_s=10)),
        (
            {"x-llm-d-slo-ttft-ms": "500", "x-slo-tokens-per-s": "10"},
            ReadingSlo(ttft_ms=500, tokens_per_s=10),
        ),
    ],
    ids=str,
)
def test_a_deadline_header_counts_beside_headers_on_tokens(beside: dict[str, str], slo: Slo) -> None:
    assert chosen(headers=beside | {"x-qlm-deadline-ms": "9000"}) == Objective(slo, deadline_ms=9000)
    assert chosen(headers=beside) == Objective(slo)


@pytest.mark.parametrize(
    ("beside", "at_least"),
    [
        ({"x-slo-ttft-ms": "500"}, "x-slo-ttft-ms, 500"),
        ({"x-llm-d-slo-ttft-ms": "500", "x-slo-tokens-per-s": "10"}, "x-llm-d-slo-ttft-ms, 500"),
        (
            {"x-slo-tokens-per-s": "10"},
            "1000, the default first token in ms; send x-slo-ttft-ms for an earlier one",
        ),
    ],
    ids=str,
)
def test_a_deadline_header_before_the_first_token_is_refused(beside: dict[str, str], at_least: str) -> None:
    with pytest.raises(
        InvalidValueError, match=rf"^x-qlm-deadline-ms is 400\.0; expected at least {at_least}"
    ):
        chosen(headers=beside | {"x-qlm-deadline-ms": "400"})


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "fast", ""])
def test_a_senseless_pace_is_refused_by_its_header(text: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"^x-slo-tokens-per-s is '{text}'; expected a number"):
        chosen(headers={"x-slo-tokens-per-s": text})


def test_a_pace_beside_a_mean_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"^x-slo-tokens-per-s is .*x-slo-ttft-ms"):
        chosen(headers={"x-slo-tokens-per-s": "5", "x-slo-tpot-ms": "500"})


def test_the_body_wins_over_headers_and_headers_over_the_tier() -> None:
    headers = {"x-qlm-deadline-ms": "200"}
    assert chosen({"deadline_ms": 100}, headers, "flex").slo == DeadlineSlo(deadline_ms=100)
    assert chosen(None, headers, "flex").slo == DeadlineSlo(deadline_ms=200)


@pytest.mark.parametrize(
    ("tier", "slo", "returned"),
    [
        ("auto", LIMITS.default_slo, "default"),
        ("default", LIMITS.default_slo, "default"),
        ("flex", BatchSlo(), "flex"),
        ("priority", LIMITS.interactive_slo, "priority"),
    ],
)
def test_the_tier_is_an_objective_and_returned(tier: str, slo: Slo, returned: str) -> None:
    assert chosen(tier=tier).slo == slo
    assert tier_of(slo, LIMITS) == returned


@pytest.mark.parametrize(
    ("slo", "headers", "default", "read"),
    [
        (None, {}, None, None),
        (None, {}, 0.7, 0.7),
        ({"deadline_ms": 500}, {}, 0.7, 0.7),
        ({"deadline_ms": 500}, {"x-qlm-p-met-min": "0.5"}, 0.7, 0.5),
        ({"deadline_ms": 500, "p_met_min": 0.9}, {"x-qlm-p-met-min": "0.5"}, 0.7, 0.9),
        ({"p_met_min": 0}, {}, 0.7, 0.0),
    ],
)
def test_how_surely_an_objective_must_be_met(
    slo: dict[str, object] | None, headers: dict[str, str], default: float | None, read: float | None
) -> None:
    body = None if slo is None else SloBody.model_validate(slo)
    assert p_met_min(body, headers, GatewayLimits(p_met_min=default)) == read


@pytest.mark.parametrize("text", ["1", "-0.1", "nan", "inf", "likely", ""])
def test_a_header_that_is_no_such_probability_is_named(text: str) -> None:
    with pytest.raises(
        InvalidValueError, match=r"x-qlm-p-met-min is .*; expected a probability from 0 to 0\.999"
    ):
        p_met_min(None, {"x-qlm-p-met-min": text}, LIMITS)


TASK = {"id": "t", "deadline_at": NOW_S + 60}


def test_a_task_has_a_deadline_as_a_time() -> None:
    assert task_deadline_ns(SloBody.model_validate({"task": TASK}), NOW_NS) == NOW_NS + 60 * 10**9
    assert task_deadline_ns(SloBody.model_validate({"deadline_ms": 5}), NOW_NS) is None
    assert task_deadline_ns(None, NOW_NS) is None


@pytest.mark.parametrize(
    ("slo", "named"),
    [
        ({"task": TASK | {"deadline_at": NOW_S}}, r"slo\.task\.deadline_at"),
        ({"task": TASK | {"deadline_at": NOW_S + 31 * 24 * 3600}}, r"slo\.task\.deadline_at"),
        ({"task": TASK | {"deadline_at": "soon"}}, r"slo\.task\.deadline_at"),
        ({"task": TASK, "deadline_ms": 5000}, r"slo is \['deadline_ms', 'task'\]"),
        ({"task": TASK, "ttft_ms": 500}, r"slo is \['task', 'ttft_ms'\]"),
    ],
    ids=str,
)
def test_a_wrong_task_is_refused_by_name(slo: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        task_deadline_ns(SloBody.model_validate(slo), NOW_NS)


@pytest.mark.parametrize(
    "changes",
    [{"id": ""}, {"id": "t" * 101}, {"calls_left": 0}, {"calls_left": -1}, {"calls_left": 1.5}, {"calls": 3}],
    ids=str,
)
def test_a_task_has_fields_in_their_bounds_only(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SloBody.model_validate({"task": TASK | changes})


def test_the_urgency_of_a_call_is_its_objective() -> None:
    body = SloBody.model_validate({"task": TASK, "on_miss": "drop"})
    made = choose(body, {}, "auto", LIMITS, NOW_NS, Urgency(7.5, hopeless=True))
    assert made == Objective(DeadlineSlo(deadline_ms=7500), OnMiss.DROP, late=True)


def test_a_call_just_before_the_deadline_of_its_task_has_the_least_objective() -> None:
    body = SloBody.model_validate({"task": TASK})
    made = choose(body, {}, "auto", LIMITS, NOW_NS, Urgency(1e-6, hopeless=True))
    assert made.slo == DeadlineSlo(deadline_ms=0.01)
