"""A stream of requests: arrivals, lengths, and the rules that make requests of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from qlm.simulator.workload.arrivals import Arrivals
from qlm.simulator.workload.lengths import Lengths
from qlm.simulator.workload.limits import LengthLimits, MaxTokens
from qlm.simulator.workload.slo_rules import SloRule
from qlm.simulator.workload.trace import Trace


class Order(StrEnum):
    """Which rows of a trace give the lengths."""

    FILE = "file"
    """One after the other, from the beginning again after the last."""
    RESAMPLE = "resample"
    """Drawn by the seed, with replacement."""


@dataclass(frozen=True, slots=True)
class TraceTimes:
    """Requests come when they come in a trace; its times are multiplied by `time_scale`."""

    trace: Trace
    time_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class TraceLengths:
    """Lengths of a trace; with its own times and in its order, each row keeps its lengths."""

    trace: Trace
    order: Order = Order.FILE


@dataclass(frozen=True, slots=True)
class DrawnLengths:
    """Lengths of prompts and answers, drawn independently."""

    prompt: Lengths
    output: Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One source of requests.

    Names of models, tenants and classes come from the trace of the arrivals if it has them, else from
    that of the lengths.

    Attributes:
        name: Names its random numbers; streams of one workload differ in it.
        arrivals: When requests come.
        lengths: How long prompts and answers are.
        model: Index of the model of all requests, or by model name of the trace; None leaves those out.
        tenant: Tenant of all requests; None takes those of the trace, or `default`.
        slo: The rule for classes.
        max_tokens: The rule for the client's limit.
        limits: What is cut.
    """

    name: str
    arrivals: Arrivals | TraceTimes
    lengths: TraceLengths | DrawnLengths
    model: int | Mapping[str, int | None]
    tenant: str | None
    slo: SloRule
    max_tokens: MaxTokens
    limits: LengthLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCounts:
    """What became of a stream.

    Attributes:
        name: Of the stream.
        requests: That were made.
        zero_output_dropped: Rows its traces lost because nothing was generated.
        left_out: Rows whose model was to be left out.
        prompts_cut: Prompts cut to the stream's limit or the context.
        outputs_cut: Answers likewise.
        over_context_dropped: Requests left out because they exceed the context.
    """

    name: str
    requests: int
    zero_output_dropped: int = 0
    left_out: int = 0
    prompts_cut: int = 0
    outputs_cut: int = 0
    over_context_dropped: int = 0
