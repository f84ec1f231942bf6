"""Conversion of a scenario file's streams into those of the simulator."""

from collections.abc import Mapping
from dataclasses import dataclass

from qlm.cli.scenario.sections import TraceSection
from qlm.cli.scenario.streams import (
    ArrivalsSection,
    ExtentSection,
    LengthSection,
    LengthsSection,
    MaxTokensSection,
    SloRuleSection,
    StreamSection,
)
from qlm.simulator.workload.arrivals import Arrivals, ArrivalSpan, Bursts, Gamma, OnOff, Poisson, Ramp
from qlm.simulator.workload.lengths import Constant, Lengths, LogNormal, Uniform
from qlm.simulator.workload.limits import AtLeastOutput, Exact, Fixed, LengthLimits, MaxTokens, Quantile
from qlm.simulator.workload.reading import TraceSource
from qlm.simulator.workload.slo_rules import (
    Always,
    ByColumn,
    ByModel,
    ByPrompt,
    ByShares,
    ByTenant,
    Shares,
    SloRule,
)
from qlm.simulator.workload.stream import DrawnLengths, Stream, TraceLengths, TraceTimes
from qlm.simulator.workload.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Models, classes and traces by their names in a scenario file.

    Attributes:
        models: Index by model id.
        slo_classes: Index by class name.
        traces: Contents by name of the trace.
    """

    models: Mapping[str, int]
    slo_classes: Mapping[str, int]
    traces: Mapping[str, Trace]


def build_stream(name: str, section: StreamSection, names: Names) -> Stream:
    """Convert a section into a stream; `names` has all names in it."""
    model: int | Mapping[str, int | None]
    if section.model is not None:
        model = names.models[section.model]
    else:
        mapped = section.models or {}
        model = {key: None if target is None else names.models[target] for key, target in mapped.items()}
    return Stream(
        name=name,
        arrivals=_arrivals(section.arrivals, names),
        lengths=_lengths(section.lengths, names),
        model=model,
        tenant=section.tenant,
        slo=_slo(section.slo, names),
        max_tokens=_max_tokens(section.max_tokens),
        limits=LengthLimits(
            prompt_tokens_max=section.prompt_tokens_max,
            output_tokens_max=section.output_tokens_max,
            over_context=section.over_context,
        ),
    )


def trace_source(section: TraceSection) -> TraceSource:
    """Convert a section into the source of a trace."""
    return TraceSource(
        path=section.path,
        format=section.format,
        columns={str(meaning): column for meaning, column in section.columns.items()},
        zero_output=section.zero_output,
        tokenizer=section.tokenizer,
        from_s=section.from_s,
        duration_s=section.duration_s,
    )


def _arrivals(section: ArrivalsSection, names: Names) -> Arrivals | TraceTimes:
    if section.trace is not None:
        return TraceTimes(names.traces[section.trace], section.time_scale)
    if (poisson := section.poisson) is not None:
        return Poisson(rate_rps=poisson.rate_rps, span=_arrival_span(poisson))
    if (gamma := section.gamma) is not None:
        return Gamma(rate_rps=gamma.rate_rps, cv=gamma.cv, span=_arrival_span(gamma))
    if (bursts := section.bursts) is not None:
        return Bursts(**bursts.model_dump())
    if (on_off := section.on_off) is not None:
        return OnOff(
            rate_rps=on_off.rate_rps, on_s=on_off.on_s, off_s=on_off.off_s, span=_arrival_span(on_off)
        )
    assert section.ramp is not None
    return Ramp(**section.ramp.model_dump())


def _arrival_span(section: ExtentSection) -> ArrivalSpan:
    return ArrivalSpan(requests=section.requests, duration_s=section.duration_s, start_s=section.start_s)


def _lengths(section: LengthsSection, names: Names) -> TraceLengths | DrawnLengths:
    if section.trace is not None:
        return TraceLengths(names.traces[section.trace], section.order)
    assert section.prompt_tokens is not None and section.output_tokens is not None
    return DrawnLengths(_length(section.prompt_tokens), _length(section.output_tokens))


def _length(section: LengthSection) -> Lengths:
    if section.constant is not None:
        return Constant(section.constant)
    if section.uniform is not None:
        return Uniform(low=section.uniform.min, high=section.uniform.max)
    normal = section.lognormal
    assert normal is not None
    if normal.mean is not None:
        return LogNormal.of_mean(normal.mean, normal.sigma, normal.min, normal.max)
    assert normal.median is not None
    return LogNormal(median=normal.median, sigma=normal.sigma, low=normal.min, high=normal.max)


def _max_tokens(section: MaxTokensSection) -> MaxTokens:
    if section.fixed is not None:
        return Fixed(section.fixed)
    if section.at_least_output is not None:
        return AtLeastOutput(section.at_least_output)
    return Exact() if section.quantile is None else Quantile(section.quantile)


def _slo(section: SloRuleSection, names: Names) -> SloRule:
    classes = names.slo_classes
    if section.always is not None:
        return Always(classes[section.always])
    if section.shares is not None:
        return ByShares(_shares(section.shares, classes))
    if section.by_tenant is not None:
        return ByTenant(_shares(section.by_tenant, classes))
    if section.by_model is not None:
        shares = {names.models[model]: _shares(each, classes) for model, each in section.by_model.items()}
        return ByModel(shares)
    if section.by_prompt is not None:
        steps = [(step.up_to_tokens, classes[step.slo_class]) for step in section.by_prompt]
        limited = tuple((tokens, each) for tokens, each in steps if tokens is not None)
        return ByPrompt(limited, steps[-1][1])
    assert section.by_column is not None
    return ByColumn({value: classes[name] for value, name in section.by_column.items()})


def _shares(shares: Mapping[str, float], classes: Mapping[str, int]) -> Shares:
    return tuple((classes[name], share) for name, share in shares.items())
