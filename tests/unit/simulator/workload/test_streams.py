"""Streams merged into a workload: rules, limits, and independence of what must not matter."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.workload.arrivals import ArrivalSpan, Bursts, Gamma, OnOff, Poisson, Ramp
from qlm.simulator.workload.formats import read_csv
from qlm.simulator.workload.lengths import Constant, LogNormal
from qlm.simulator.workload.limits import AtLeastOutput, Exact, Fixed, LengthLimits, OverContext, Quantile
from qlm.simulator.workload.maker import WorkloadMaker
from qlm.simulator.workload.mooncake import read_mooncake
from qlm.simulator.workload.slo_rules import Always, ByColumn, ByModel, ByPrompt, ByShares, ByTenant
from qlm.simulator.workload.stream import DrawnLengths, Order, Stream, TraceLengths, TraceTimes
from qlm.simulator.workload.trace import Labels, Trace

CONTEXT = (4096, 8192)
NO_LIMITS = LengthLimits()

OUTPUTS = LogNormal(median=100, sigma=1, high=1000)

GENERATED = Stream(
    name="generated",
    arrivals=Poisson(rate_rps=10, span=ArrivalSpan(requests=2000)),
    lengths=DrawnLengths(
        LogNormal(median=200, sigma=1, high=2000), LogNormal(median=100, sigma=1, high=1000)
    ),
    model=0,
    tenant=None,
    slo=ByShares(((0, 0.25), (1, 0.75))),
    max_tokens=Fixed(512),
    limits=NO_LIMITS,
)


def trace_of(
    rows: Sequence[tuple[float, str, str, int, int]], classes: list[str] | None = None, file: str = "t.csv"
) -> Trace:
    """A trace of (arrival_s, model, tenant, prompt, output)."""
    return Trace(
        path=Path(file),
        arrival_ns=np.array([round(row[0] * 1e9) for row in rows], dtype=np.int64),
        model=Labels.of([row[1] for row in rows]),
        tenant=Labels.of([row[2] for row in rows]),
        prompt_tokens=np.array([row[3] for row in rows], dtype=np.int64),
        output_tokens=np.array([row[4] for row in rows], dtype=np.int64),
        slo_class=Labels.of(classes) if classes else None,
    )


ROWS = [(0.0, "small", "ann", 10, 5), (1.0, "large", "bob", 300, 50), (4.0, "small", "ann", 20, 600)]


def replayed(trace: Trace, **changes: Any) -> Stream:
    stream = replace(
        GENERATED,
        name="replayed",
        arrivals=TraceTimes(trace),
        lengths=TraceLengths(trace),
        model={"small": 0, "large": 1},
        slo=Always(0),
        max_tokens=Exact(),
    )
    return replace(stream, **changes)


def make(*streams: Stream, seed: int = 1, load: float = 1.0) -> Workload:
    return WorkloadMaker(streams=streams, context_tokens=CONTEXT, load=load)(Seeds(seed))


def columns(workload: Workload) -> dict[str, Any]:
    plain = {field.name: getattr(workload, field.name) for field in fields(workload)}
    return {name: each.tolist() if isinstance(each, np.ndarray) else each for name, each in plain.items()}


def test_a_trace_keeps_its_rows_together() -> None:
    workload = make(replayed(trace_of(ROWS)))
    assert workload.arrival_ns.tolist() == [0, 10**9, 4 * 10**9]
    assert workload.model.tolist() == [0, 1, 0]
    assert [workload.tenants[each] for each in workload.tenant.tolist()] == ["ann", "bob", "ann"]
    assert workload.prompt_tokens.tolist() == [10, 300, 20]
    assert workload.output_tokens.tolist() == workload.max_tokens.tolist() == [5, 50, 600]


def test_load_and_time_scale_compress_the_times_of_a_trace() -> None:
    trace = trace_of(ROWS)
    workload = make(replayed(trace, arrivals=TraceTimes(trace, time_scale=0.5)), load=2.0)
    assert workload.arrival_ns.tolist() == [0, 250_000_000, 10**9]


def test_load_multiplies_rates() -> None:
    spans = [make(GENERATED, load=load).arrival_ns[-1] for load in (1.0, 2.0)]
    assert spans[0] == pytest.approx(2 * spans[1], rel=1e-6)


def test_lengths_of_another_trace_start_again_after_its_last_row() -> None:
    other = trace_of([(0, "x", "t", 7, 1), (1, "x", "t", 8, 2)], file="other.csv")
    workload = make(replayed(trace_of(ROWS), lengths=TraceLengths(other)))
    assert workload.prompt_tokens.tolist() == [7, 8, 7]
    assert workload.model.tolist() == [0, 1, 0]


def test_resampled_rows_keep_their_pairs_and_names() -> None:
    stream = replace(
        GENERATED, lengths=TraceLengths(trace_of(ROWS), Order.RESAMPLE), model={"small": 0, "large": 1}
    )
    workload = make(stream)
    drawn = set(zip(workload.model.tolist(), workload.prompt_tokens.tolist(), strict=True))
    assert drawn == {(0, 10), (1, 300), (0, 20)}
    assert np.bincount(workload.model).tolist() == pytest.approx([1333, 667], rel=0.1)


def test_models_can_be_left_out() -> None:
    maker = WorkloadMaker(
        streams=(replayed(trace_of(ROWS), model={"small": None, "large": 1}),), context_tokens=CONTEXT
    )
    workload, (counts,) = maker.draw(Seeds(1))
    assert workload.prompt_tokens.tolist() == [300]
    assert (counts.requests, counts.left_out) == (1, 2)


def test_what_exceeds_the_context_is_cut_and_counted() -> None:
    rows = [(0, "small", "a", 4000, 90), (1, "small", "a", 4090, 3000), (2, "small", "a", 10, 9000)]
    maker = WorkloadMaker(streams=(replayed(trace_of(rows), model=0),), context_tokens=CONTEXT)
    workload, (counts,) = maker.draw(Seeds(1))
    assert workload.prompt_tokens.tolist() == [4000, 2048, 10]
    assert workload.output_tokens.tolist() == [90, 2048, 4086]
    assert (counts.prompts_cut, counts.outputs_cut, counts.over_context_dropped) == (1, 2, 0)


def test_what_exceeds_the_context_can_be_dropped() -> None:
    rows = [(0, "small", "a", 4000, 96), (1, "small", "a", 4000, 97)]
    limits = LengthLimits(over_context=OverContext.DROP)
    maker = WorkloadMaker(streams=(replayed(trace_of(rows), model=0, limits=limits),), context_tokens=CONTEXT)
    workload, (counts,) = maker.draw(Seeds(1))
    assert workload.output_tokens.tolist() == [96]
    assert (counts.requests, counts.over_context_dropped) == (1, 1)


@given(
    st.lists(st.tuples(st.integers(1, 20_000), st.integers(1, 20_000)), min_size=1),
    st.integers(2, 10_000),
    st.sampled_from(OverContext),
    st.one_of(st.none(), st.integers(1, 5000)),
)
def test_fitted_requests_fit(
    lengths: list[tuple[int, int]], context: int, over_context: OverContext, limit: int | None
) -> None:
    prompt, output = np.array(lengths, dtype=np.int64).T
    limits = LengthLimits(prompt_tokens_max=limit, output_tokens_max=limit, over_context=over_context)
    fitted = limits.fit(prompt, output, np.full(len(prompt), context, dtype=np.int64))
    assert (fitted.prompt_tokens + fitted.output_tokens <= context).all()
    assert (fitted.prompt_tokens >= 1).all() and (fitted.output_tokens >= 1).all()
    assert (fitted.prompt_tokens <= prompt[fitted.kept]).all()
    assert (fitted.output_tokens <= output[fitted.kept]).all()
    assert len(fitted.kept) + fitted.dropped == len(prompt)


@pytest.mark.parametrize(
    ("rule", "limits"),
    [
        (Exact(), [5, 50, 600]),
        (Fixed(100), [100, 100, 100]),
        (AtLeastOutput(100), [100, 100, 600]),
        (Quantile(0.5), [303, 50, 303]),
        (Fixed(5000), [4086, 5000, 4076]),
    ],
)
def test_clients_allow_what_the_rule_says_within_the_context(rule: Any, limits: list[int]) -> None:
    assert make(replayed(trace_of(ROWS), max_tokens=rule)).max_tokens.tolist() == limits


def test_shares_are_met() -> None:
    assert np.bincount(make(GENERATED).slo_class).tolist() == pytest.approx([500, 1500], rel=0.1)


def test_shares_of_a_model_are_its_own() -> None:
    rule = ByModel({0: ((0, 1.0), (1, 0.0)), 1: ((0, 0.0), (1, 1.0))})
    assert make(replayed(trace_of(ROWS), slo=rule)).slo_class.tolist() == [0, 1, 0]


def test_a_tenant_has_one_class_whatever_the_seed() -> None:
    rows = [(index, "small", f"tenant-{index % 300}", 10, 10) for index in range(900)]
    stream = replayed(trace_of(rows), slo=ByTenant(((0, 0.3), (1, 0.7))))
    first, again = make(stream, seed=1), make(stream, seed=2)
    assert first.slo_class.tolist() == again.slo_class.tolist()
    classes: dict[int, set[int]] = {}
    for tenant, each in zip(first.tenant.tolist(), first.slo_class.tolist(), strict=True):
        classes.setdefault(tenant, set()).add(each)
    assert {len(each) for each in classes.values()} == {1}
    assert np.mean([each == {0} for each in classes.values()]) == pytest.approx(0.3, abs=0.1)


def test_prompts_up_to_a_length_have_a_class() -> None:
    rule = ByPrompt(((10, 2), (20, 0)), 1)
    assert make(replayed(trace_of(ROWS), slo=rule)).slo_class.tolist() == [2, 1, 0]


def test_a_column_can_name_the_class() -> None:
    trace = trace_of(ROWS, ["fast", "slow", "slow"])
    rule = ByColumn({"fast": 1, "slow": 0})
    assert make(replayed(trace, slo=rule)).slo_class.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {"small": 0}},
            r"workload\.replayed\.models is \['small'\]; expected also 'large'",
        ),
        (
            {"slo": ByColumn({"a": 0})},
            r"replayed\.slo\.by_column is .*column slo_class.* not in t\.csv",
        ),
    ],
)
def test_names_without_a_meaning_are_refused(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make(replayed(trace_of(ROWS), **changes))


def test_values_of_a_class_column_must_be_listed() -> None:
    stream = replayed(trace_of(ROWS, ["a", "b", "a"]), slo=ByColumn({"a": 0}))
    with pytest.raises(InvalidValueError, match=r"slo\.by_column is \['a'\]; expected also 'b' of the trace"):
        make(stream)


def test_arrivals_need_times() -> None:
    trace = replace(trace_of(ROWS), arrival_ns=None)
    with pytest.raises(InvalidValueError, match=r"arrivals\.trace is 't\.csv without times'"):
        make(replayed(trace))


def test_streams_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="each with a name of its own"):
        make(GENERATED, GENERATED)


REPLAYED_LATE = TraceTimes(trace_of(ROWS), time_scale=1e9)


@pytest.mark.parametrize(
    ("arrivals", "load"),
    [
        (Poisson(rate_rps=1e-300, span=ArrivalSpan(requests=2)), 1.0),
        (Poisson(rate_rps=1.0, span=ArrivalSpan(requests=2)), 1e-300),
        (Poisson(rate_rps=1e-300, span=ArrivalSpan(requests=2)), 1e-300),
        (Gamma(rate_rps=1e-300, cv=100, span=ArrivalSpan(requests=200)), 1e-300),
        (OnOff(rate_rps=1.0, on_s=1e-9, off_s=3e7, span=ArrivalSpan(requests=200)), 1.0),
        (Bursts(count=1, bursts=3, every_s=1.0), 5e-324),
        (REPLAYED_LATE, 1.0),
        (replace(REPLAYED_LATE, time_scale=1.0), 5e-324),
    ],
)
def test_a_stream_whose_requests_come_too_late_is_named(arrivals: Any, load: float) -> None:
    with pytest.raises(
        InvalidValueError, match=r"^workload\.generated\.arrivals is .* s'; expected none after"
    ):
        make(replace(GENERATED, arrivals=arrivals), load=load)


@pytest.mark.parametrize(
    "arrivals",
    [
        Gamma(rate_rps=1e-300, cv=1, span=ArrivalSpan(duration_s=10)),
        Ramp(from_rps=1e-300, to_rps=0, duration_s=10),
        OnOff(rate_rps=1e-300, on_s=1e-9, off_s=3e7, span=ArrivalSpan(duration_s=3e7)),
    ],
)
def test_a_rate_of_almost_nothing_gives_nothing(arrivals: Any) -> None:
    assert len(make(replace(GENERATED, arrivals=arrivals), load=1e-300)) == 0


def test_a_stream_with_too_many_requests_is_named() -> None:
    endless = replace(GENERATED, arrivals=Poisson(rate_rps=1e6, span=ArrivalSpan(duration_s=3e7)))
    with pytest.raises(
        InvalidValueError, match=r"^workload\.generated\.arrivals is '30000000000000 requests'"
    ):
        make(endless)


def test_streams_may_not_have_too_many_requests_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qlm.simulator.workload.arrivals.REQUESTS_MAX", 2000)
    assert len(make(GENERATED)) == 2000
    with pytest.raises(
        InvalidValueError, match=r"^workload is '2001 requests'; expected at most 2000 in all"
    ):
        make(GENERATED, replace(GENERATED, name="one more", arrivals=Bursts(count=1)))


def test_prefixes_of_equal_requests_come_in_an_order_of_their_own(tmp_path: Path) -> None:
    streams = []
    for block in (7, 3, 5):
        file = tmp_path / f"{block}.jsonl"
        line = f'{{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [{block}]}}'
        file.write_text(f"{line}\n")
        streams.append(replayed(read_mooncake(file), name=str(block), model=0))
    assert make(*streams).prefixes == make(*streams[::-1]).prefixes == ((3,), (5,), (7,))


def test_prefixes_come_along_and_are_cut_with_the_prompt(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 0, "input_length": 1053, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
        '{"timestamp": 5, "input_length": 100, "output_length": 5, "hash_ids": [9]}\n'
    )
    trace = read_mooncake(file)
    stream = replayed(trace, model=0, limits=LengthLimits(prompt_tokens_max=600))
    assert make(stream).prefixes == ((0, 1), (9,))
    burst = replace(GENERATED, arrivals=Bursts(count=1), slo=Always(0))
    assert set(make(stream, burst).prefixes) == {(0, 1), (9,), ()}


def test_equal_seeds_give_equal_workloads_and_others_do_not() -> None:
    assert columns(make(GENERATED, seed=5)) == columns(make(GENERATED, seed=5))
    first, other = columns(make(GENERATED, seed=5)), columns(make(GENERATED, seed=6))
    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "slo_class"):
        assert first[name] != other[name]


@pytest.mark.parametrize(
    ("changes", "untouched"),
    [
        (
            {"arrivals": Bursts(count=2000)},
            (),
        ),
        (
            {"lengths": DrawnLengths(Constant(5), OUTPUTS)},
            ("arrival_ns", "slo_class", "output_tokens"),
        ),
        ({"slo": ByShares(((0, 0.5), (1, 0.5)))}, ("arrival_ns", "prompt_tokens", "output_tokens")),
    ],
)
def test_a_change_of_one_decision_changes_no_other(
    changes: Mapping[str, Any], untouched: tuple[str, ...]
) -> None:
    before, after = columns(make(GENERATED)), columns(make(replace(GENERATED, **changes)))
    for name in untouched:
        assert before[name] == after[name]
    # Equal times are put in another order, but lengths are the same multiset.
    assert sorted(before["output_tokens"]) == sorted(after["output_tokens"])


def test_another_stream_does_not_change_the_first() -> None:
    other = replace(GENERATED, name="other", model=1)
    both, alone = make(GENERATED, other), make(GENERATED)
    mine = both.model == 0
    assert both.arrival_ns[mine].tolist() == alone.arrival_ns.tolist()
    assert both.output_tokens[mine].tolist() == alone.output_tokens.tolist()
    assert columns(both) == columns(make(other, GENERATED))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 5)), min_size=2), st.randoms())
def test_the_order_of_rows_of_equal_time_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], chance: random.Random
) -> None:
    rows.sort()
    shuffled = rows.copy()
    chance.shuffle(shuffled)
    shuffled.sort(key=lambda row: row[0])
    made = []
    for order in (rows, shuffled):
        file = tmp_path_factory.mktemp("traces") / "trace.csv"
        lines = [f"{at},m{who},t{tokens % 2},{tokens},{who + 1}\n" for at, who, tokens in order]
        file.write_text("arrival_s,model,tenant,input_tokens,output_tokens\n" + "".join(lines))
        stream = replayed(read_csv(file), model={f"m{who}": who % 2 for who in range(3)}, slo=GENERATED.slo)
        made.append(columns(make(stream)))
    assert made[0] == made[1]
