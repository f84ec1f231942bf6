"""Schedule of a run: when each request arrives, and how long it and its answer are; drawn beforehand."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qlm.cli.bench.record import FloatArray
from qlm.domain.errors import QlmError
from qlm.simulator.workload.arrivals import ArrivalSpan, Gamma
from qlm.simulator.workload.reading import TraceSource, read_trace
from qlm.simulator.workload.trace import Trace
from qlm.simulator.workload.trace_format import TraceFormat

Lengths = npt.NDArray[np.int64]


class Planned(NamedTuple):
    """A request to send: its arrival, seconds from the first one, and its lengths in tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What arrives; the names are those of `vllm bench serve`.

    Attributes:
        request_rate: Requests per second; infinite to send all at once, None for the times of a trace.
        burstiness: Shape of the gamma-distributed gaps: 1 for Poisson arrivals, less for burstier ones.
        num_prompts: Number of requests; at most that of a trace.
        input_len: Mean prompt tokens.
        output_len: Mean output tokens.
        random_range_ratio: Lengths are uniform from (1 - ratio) to (1 + ratio) of the mean.
        trace: Lengths, and times without a rate; None to draw them.
    """

    request_rate: float | None
    burstiness: float = 1.0
    num_prompts: int = 1000
    input_len: int = 1024
    output_len: int = 128
    random_range_ratio: float = 0.0
    trace: Trace | None = None


def read_load_trace(path: Path, kind: TraceFormat) -> Trace:
    """Read a trace in a format of the simulator.

    Raises:
        InvalidValueError: The file does not have the format.
    """
    return read_trace(TraceSource(path=path, format=kind))


def plan(load: Load, seed: int) -> tuple[Planned, ...]:
    """Draw a schedule. The same seed gives the same lengths at every rate.

    Raises:
        QlmError: There is neither a rate nor a trace with times.
    """
    prompts, outputs = _lengths(load, np.random.default_rng((seed, 1)))
    times_s = _times_s(load, len(prompts), np.random.default_rng((seed, 0)))
    times_s = times_s - times_s[0]
    return tuple(map(Planned, times_s.tolist(), prompts.tolist(), outputs.tolist()))


def _times_s(load: Load, requests: int, rng: np.random.Generator) -> FloatArray:
    if load.request_rate is None:
        if load.trace is None or load.trace.arrival_ns is None:
            expected = "a rate, inf to send all at once, or a trace with times"
            raise QlmError(f"--request-rate is missing; expected {expected}")
        return np.asarray(load.trace.arrival_ns[:requests] / 1e9)
    if np.isinf(load.request_rate):
        return np.zeros(requests)
    if np.isinf(load.burstiness):
        return np.arange(requests) / load.request_rate
    arrivals = Gamma(
        rate_rps=load.request_rate, cv=load.burstiness**-0.5, span=ArrivalSpan(requests=requests)
    )
    return arrivals.times_s(rng, 1.0)


def _lengths(load: Load, rng: np.random.Generator) -> tuple[Lengths, Lengths]:
    if load.trace is not None:
        return load.trace.prompt_tokens[: load.num_prompts], load.trace.output_tokens[: load.num_prompts]

    def drawn(mean: int) -> Lengths:
        low, high = mean * (1 - load.random_range_ratio), mean * (1 + load.random_range_ratio)
        return rng.integers(max(1, int(low)), max(1, int(high)) + 1, load.num_prompts)

    return drawn(load.input_len), drawn(load.output_len)


def prompt_tokens(planned: Iterable[Planned], rng: np.random.Generator) -> list[list[int]]:
    """Draw the token ids of prompts.

    Args:
        planned: The requests.
        rng: Source of them. It must differ from run to run, or the prefix cache contains them.
    """
    # Almost every vocabulary has these; lower ids are often special tokens.
    return [rng.integers(10, 200, each.prompt_tokens).tolist() for each in planned]
