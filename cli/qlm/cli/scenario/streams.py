"""Sections of a scenario file about its requests: arrivals, lengths, limits and classes of a stream."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from qlm.cli.config.fleet import Name
from qlm.cli.scenario.sections import Duration, Seconds, Section, no_truth
from qlm.simulator.workload.arrivals import REQUESTS_MAX
from qlm.simulator.workload.cells import LENGTH_TOKENS_MAX
from qlm.simulator.workload.limits import OverContext
from qlm.simulator.workload.slo_rules import check_shares
from qlm.simulator.workload.stream import Order

Rate = Annotated[float, Field(gt=0, le=1_000_000)]
Tokens = Annotated[int, Field(ge=1, le=LENGTH_TOKENS_MAX)]
Count = Annotated[int, Field(ge=1, le=REQUESTS_MAX)]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(no_truth)]
SharesSection = Annotated[Mapping[str, Share], Field(min_length=1)]


class ExtentSection(Section):
    """Length of an arrival process; exactly one of `requests` and `duration_s`.

    Attributes:
        requests: Number of requests.
        duration_s: Duration, seconds.
        start_s: Start, seconds after that of the simulation.
    """

    requests: Count | None = None
    duration_s: Duration | None = None
    start_s: Seconds = 0.0

    @model_validator(mode="after")
    def _one_extent(self) -> Self:
        self.one_of("requests", "duration_s")
        return self


class PoissonSection(ExtentSection):
    """Independent arrivals at a constant rate; exactly one of `requests` and `duration_s`.

    Attributes:
        rate_rps: Requests per second.
    """

    rate_rps: Rate


class GammaSection(ExtentSection):
    """Arrivals with gamma-distributed gaps; exactly one of `requests` and `duration_s`.

    Attributes:
        rate_rps: Requests per second.
        cv: Coefficient of variation of the gaps: 1 is like Poisson, more is burstier.
    """

    rate_rps: Rate
    cv: float = Field(gt=0.01, le=100)


class OnOffSection(ExtentSection):
    """Poisson arrivals for `on_s`, none for `off_s`, and so on; exactly one of `requests` and `duration_s`.

    Attributes:
        rate_rps: Requests per second while it is on.
        on_s: Time with requests.
        off_s: Time without requests.
    """

    rate_rps: Rate
    on_s: Duration
    off_s: Duration


class BurstsSection(Section):
    """Bursts of `count` simultaneous requests, `every_s` apart.

    Attributes:
        count: Requests of one burst.
        bursts: Number of bursts.
        every_s: Time from one burst to the next.
        start_s: Start, seconds after that of the simulation.
    """

    count: Count
    bursts: Count = 1
    every_s: Seconds = 0.0
    start_s: Seconds = 0.0


class RampSection(Section):
    """Poisson arrivals whose rate changes linearly from `from_rps` to `to_rps` within `duration_s`.

    Attributes:
        from_rps: Requests per second at the start.
        to_rps: Requests per second at the end.
        duration_s: Time from start to end.
        start_s: Start, seconds after that of the simulation.
    """

    from_rps: float = Field(ge=0, le=1_000_000)
    to_rps: float = Field(ge=0, le=1_000_000)
    duration_s: Duration
    start_s: Seconds = 0.0


class ArrivalsSection(Section):
    """Arrival times; exactly one of the keys, `time_scale` with `trace` only.

    Attributes:
        trace: Name of the trace with the arrival times.
        time_scale: Factor on the times of the trace.
        poisson: Independent arrivals at a constant rate.
        gamma: Bursty or regular arrivals.
        bursts: Simultaneous arrivals.
        on_off: Arrivals with pauses.
        ramp: Independent arrivals at a changing rate.
    """

    trace: str | None = None
    time_scale: float = Field(1.0, gt=0, le=1000)
    poisson: PoissonSection | None = None
    gamma: GammaSection | None = None
    bursts: BurstsSection | None = None
    on_off: OnOffSection | None = None
    ramp: RampSection | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kind = self.one_of("trace", "poisson", "gamma", "bursts", "on_off", "ramp")
        if "time_scale" in self.model_fields_set and kind != "trace":
            raise ValueError(f"has time_scale with {kind}; expected it with trace only")
        return self


class LogNormalSection(Section):
    """Log-normal lengths; exactly one of `median` and `mean`, both before clipping.

    Attributes:
        median: Median length.
        mean: Mean length.
        sigma: Standard deviation of the natural logarithm.
        min: Smallest length; shorter ones are raised to it.
        max: Largest length; longer ones are cut to it.
    """

    median: float | None = Field(None, ge=1, le=LENGTH_TOKENS_MAX)
    mean: float | None = Field(None, ge=1, le=LENGTH_TOKENS_MAX)
    sigma: float = Field(ge=0, le=10)
    min: Tokens = 1
    max: Tokens = 1_000_000

    @model_validator(mode="after")
    def _sound(self) -> Self:
        self.one_of("median", "mean")
        if self.min > self.max:
            raise ValueError(f"has min {self.min} and max {self.max}; expected min <= max")
        return self


class UniformSection(Section):
    """Uniformly distributed lengths from `min` to `max`, both included.

    Attributes:
        min: Smallest length.
        max: Largest length.
    """

    min: Tokens
    max: Tokens

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"has min {self.min} and max {self.max}; expected min <= max")
        return self


class LengthSection(Section):
    """A distribution of lengths of prompts or answers; exactly one of the keys.

    Attributes:
        constant: The same length for all.
        lognormal: Lengths whose logarithms are normal.
        uniform: Each length as likely as any other.
    """

    constant: Tokens | None = None
    lognormal: LogNormalSection | None = None
    uniform: UniformSection | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        self.one_of("constant", "lognormal", "uniform")
        return self


class LengthsSection(Section):
    """Lengths of prompts and answers, both from a trace or both drawn.

    Attributes:
        trace: Name of the trace.
        order: Order of its rows: as in the file, from the beginning again after the last, or drawn with
            replacement.
        prompt_tokens: Distribution of prompt lengths.
        output_tokens: Distribution of answer lengths.
    """

    trace: str | None = None
    order: Order = Order.FILE
    prompt_tokens: LengthSection | None = None
    output_tokens: LengthSection | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        drawn = [name for name in ("prompt_tokens", "output_tokens") if getattr(self, name) is not None]
        if len(drawn) == (0 if self.trace is not None else 2):
            return self
        shown = ["trace"] * (self.trace is not None) + drawn
        raise ValueError(f"has {shown}; expected trace, or prompt_tokens and output_tokens")


class MaxTokensSection(Section):
    """Output limit (`max_tokens`) of the requests; exactly one of the keys.

    Attributes:
        exact: Length of the answer.
        fixed: One limit for all; longer answers are cut off.
        at_least_output: One limit for all, raised to the length of a longer answer.
        quantile: This quantile of the answer lengths of the model; longer answers are cut off.
    """

    exact: Literal[True] | None = None
    fixed: Tokens | None = None
    at_least_output: Tokens | None = None
    quantile: float | None = Field(None, gt=0, le=1)

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        self.one_of(*type(self).model_fields)
        return self


class PromptStepSection(Section):
    """Class of prompts up to a length; the last step has no length and applies to all longer ones.

    Attributes:
        up_to_tokens: Largest prompt of this step; rising, and none in the last step.
        slo_class: Its class.
    """

    up_to_tokens: Tokens | None = None
    slo_class: str


class SloRuleSection(Section):
    """Assignment of classes to requests; exactly one of the keys.

    Attributes:
        always: One class for all; `slo: NAME` is short for it.
        shares: Share of each class, which is drawn for each request; their sum is 1.
        by_model: The same for each model of the stream.
        by_tenant: Class chosen for each tenant by a hash of its name, the same for every seed.
        by_prompt: Class by length of the prompt, after cutting: a list of steps.
        by_column: Class by value of the trace's column slo_class.
    """

    always: str | None = None
    shares: SharesSection | None = None
    by_model: Annotated[Mapping[str, SharesSection], Field(min_length=1)] | None = None
    by_tenant: SharesSection | None = None
    by_prompt: Annotated[tuple[PromptStepSection, ...], Field(min_length=1)] | None = None
    by_column: Annotated[Mapping[str, str], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        self.one_of(*type(self).model_fields)
        for name, shares in self._all_shares():
            check_shares(name, shares)
        steps = [step.up_to_tokens for step in self.by_prompt or ()]
        limits = [tokens for tokens in steps[:-1] if tokens is not None]
        if steps and (len(limits) < len(steps) - 1 or steps[-1] is not None or limits != sorted(set(limits))):
            raise ValueError(f"has by_prompt with up_to_tokens {steps}; expected rising ones, the last null")
        return self

    def classes(self) -> set[str]:
        """Return the names of all its classes."""
        named = {self.always} if self.always is not None else set()
        for _, shares in self._all_shares():
            named |= set(shares)
        named |= {step.slo_class for step in self.by_prompt or ()}
        return {*named, *(self.by_column or {}).values()}

    def _all_shares(self) -> list[tuple[str, Mapping[str, float]]]:
        alone = {"shares": self.shares, "by_tenant": self.by_tenant}
        nested = {f"by_model.{model}": shares for model, shares in (self.by_model or {}).items()}
        return [(name, shares) for name, shares in {**alone, **nested}.items() if shares is not None]


class StreamSection(Section):
    """A stream of requests.

    Attributes:
        name: Its name, which also seeds its random numbers; without it, its position in the list.
        arrivals: Arrival times.
        lengths: Lengths of prompts and answers.
        model: Model of all its requests; or else `models`.
        models: Model by model name of the trace; null leaves those requests out.
        tenant: Tenant of all requests; without it, that of the trace, or `default`.
        slo: Class of all requests, or a rule.
        max_tokens: Output limit of the requests.
        prompt_tokens_max: Largest prompt; longer ones are cut to it.
        output_tokens_max: Largest answer; longer ones are cut to it.
        over_context: Cut or drop requests that exceed the context of their model.
    """

    name: Name | None = None
    arrivals: ArrivalsSection
    lengths: LengthsSection
    model: str | None = None
    models: Annotated[Mapping[str, str | None], Field(min_length=1)] | None = None
    tenant: str | None = Field(None, min_length=1, max_length=100)
    slo: SloRuleSection
    max_tokens: MaxTokensSection = MaxTokensSection(at_least_output=512)
    prompt_tokens_max: Tokens | None = None
    output_tokens_max: Tokens | None = None
    over_context: OverContext = OverContext.CUT

    @field_validator("slo", mode="before")
    @classmethod
    def _one_class(cls, value: Any) -> Any:
        return {"always": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_way_to_models(self) -> Self:
        self.one_of("model", "models")
        return self
