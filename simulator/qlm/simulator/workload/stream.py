"""Streams of requests: arrivals, lengths, and rules for the other properties."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from qlm.simulator.workload.arrivals import Arrivals
from qlm.simulator.workload.lengths import Lengths
from qlm.simulator.workload.limits import LengthLimits, MaxTokens
from qlm.simulator.workload.slo_rules import SloRule
from qlm.simulator.workload.trace import Trace


class Order(StrEnum):
    """Order in which rows of a trace give lengths."""

    FILE = "file"
    """File order; after the last row again from the first."""
    RESAMPLE = "resample"
    """Random rows, with replacement."""


@dataclass(frozen=True, slots=True)
class TraceTimes:
    """Arrival times of a trace, multiplied by `time_scale`."""

    trace: Trace
    time_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class TraceLengths:
    """Lengths of a trace; with the trace's own times in file order, each row keeps its lengths."""

    trace: Trace
    order: Order = Order.FILE


@dataclass(frozen=True, slots=True)
class DrawnLengths:
    """Independently drawn lengths of prompts and answers."""

    prompt: Lengths
    output: Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Source of requests.

    Names of models, tenants and classes come from the trace of arrivals if it has them, else from that of
    lengths.

    Attributes:
        name: Unique name in the workload; also names its random generators.
        model: Index of the model of all requests, or indices by model name of the trace; None skips those
            rows.
        tenant: Tenant of all requests; None for those of the trace, or `default`.
        slo: Rule for classes.
        max_tokens: Rule for the client's limit.
        limits: Limits on lengths.
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
    """Counts of a stream.

    Attributes:
        name: Name of the stream.
        requests: Requests in the workload.
        zero_output_dropped: Dropped rows of its traces without output tokens.
        left_out: Rows skipped because of their model.
        prompts_cut: Prompts cut to the stream's limit or the context.
        outputs_cut: Answers cut to the stream's limit or the context.
        over_context_dropped: Requests dropped because they exceed the context.
    """

    name: str
    requests: int
    zero_output_dropped: int = 0
    left_out: int = 0
    prompts_cut: int = 0
    outputs_cut: int = 0
    over_context_dropped: int = 0
