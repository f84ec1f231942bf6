"""Simulations of `benchmarks.rct`: one instance per shipped profile, with bursts and open loops."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from qlm.controller.core.fleet import Fleet
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.slo import DeadlineSlo
from qlm.planner.problem import Kind, ModelCost
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import steady_state
from qlm.rct_estimator.workload import Workload as Mean
from qlm.simulator.scenario import IntArray, Scenario, SimulatedInstance, SloClass, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.workload.limits import LengthLimits
from qlm.simulator.workload.reading import TraceSource, read_trace
from qlm.simulator.workload.trace import Trace
from qlm.simulator.workload.trace_format import TraceFormat

TRACES: Final[Mapping[str, tuple[str, TraceFormat]]] = {
    "azure": ("azure_2023/AzureLLMInferenceTrace_conv.csv", TraceFormat.AZURE),
    "sharegpt": ("sharegpt_8k/lengths.csv", TraceFormat.LENGTHS),
    "arxiv": ("arxiv_summarization/lengths.csv", TraceFormat.LENGTHS),
    "servegen": ("servegen_multi4/trace.csv", TraceFormat.CSV),
}
"""File of each trace in the folder QLM_TRACES, and its format."""

MAX_TOKENS: Final = 1024
"""Output limit of every request; longer answers of the traces are cut to it."""

CONTEXT_MAX: Final = 8192
"""Largest context used; models may support more."""

BURST: Final = 2000
WARM_UP: Final = 1000
"""Number of answers before a burst."""

WARM_UP_LOAD: Final = 0.3
SKIPPED: Final = 1000
"""Skipped requests of an open loop, while lengths and speed are learned and the batch fills."""

FOLLOWED: Final = 0.35
"""Share of the requests of an open loop that follow the evaluated ones. At load 1.2 the less urgent class
waits a third of the time that has passed, as long as more urgent requests arrive. If they stopped earlier, a
forecast that expects them to continue would count as wrong."""

DEADLINES_S: Final = {"chat": 60, "report": 1800}
"""Classes of an open loop, each with its trace of `CLASS_TRACES`."""

CLASS_TRACES: Final = ("azure", "arxiv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Description of one simulation.

    Attributes:
        profile: Profile of the instance.
        traces: Traces of lengths; one class each.
        load: Offered rate divided by the capacity; None for a burst.
        requests: Number of evaluated requests, after the warm-up.
        every: Every n-th request is forecast.
        followed: Number of requests after the evaluated ones.
    """

    profile: Profile
    traces: tuple[str, ...]
    load: float | None
    policy: str
    requests: int
    every: int
    followed: int = 0

    @property
    def name(self) -> str:
        """Name in tables."""
        profile = self.profile
        return f"{profile.model} {profile.gpus}x{profile.accelerator}"

    @property
    def warm_up(self) -> int:
        """Number of requests before the evaluated ones."""
        return WARM_UP if self.load is None else SKIPPED


Lengths = tuple[IntArray, IntArray]
"""Prompt and output tokens of all rows of a trace, cut to a model's context."""


def read_traces(folder: Path) -> dict[str, Trace]:
    """Read all traces of `TRACES`."""
    return {
        name: read_trace(TraceSource(path=folder / path, format=format))
        for name, (path, format) in TRACES.items()
    }


def bursts(profiles: Sequence[Profile], traces: Sequence[str]) -> list[Point]:
    """Return one burst per profile and trace."""
    return [
        Point(profile=profile, traces=(trace,), load=None, policy="fcfs", requests=BURST, every=4)
        for profile, trace in itertools.product(profiles, traces)
    ]


def open_loops(
    profiles: Sequence[Profile], loads: Sequence[float], policies: Sequence[str], requests: int
) -> list[Point]:
    """Return Poisson arrivals of two classes, per profile, load and policy; `requests` after each warm-up."""
    followed = round(FOLLOWED * requests)
    return [
        Point(
            profile=p,
            traces=CLASS_TRACES,
            load=load,
            policy=policy,
            requests=requests - followed,
            every=2,
            followed=followed,
        )
        for p, load, policy in itertools.product(profiles, loads, policies)
    ]


def scenario(point: Point, traces: Mapping[str, Trace]) -> Scenario:
    """Build the scenario of a point."""
    profile = point.profile
    model, kind = ModelId(profile.model), f"{profile.gpus}x{profile.accelerator}"
    context = min(CONTEXT_MAX, profile.context_tokens, profile.kv_tokens - profile.block_tokens)
    cost = ModelCost(
        weights_bytes=profile.weights_bytes,
        swap_warm_s=profile.swap_warm_s,
        swap_cold_s=profile.swap_cold_s,
        unload_s=profile.unload_s,
    )
    names = list(DEADLINES_S)[: len(point.traces)]
    # Agents start their requests by deadline: equal deadlines give first come, first served.
    deadlines = (
        DEADLINES_S if point.policy == "edf" else dict.fromkeys(DEADLINES_S, max(DEADLINES_S.values()))
    )
    return Scenario(
        name=f"{point.name} {'+'.join(point.traces)}",
        models=(ModelSpec(id=model, tokenizer="byte", context_tokens=context),),
        instances=(SimulatedInstance(id=InstanceId("only"), kind=kind, models=(model,)),),
        fleet=Fleet(
            kinds={kind: Kind(host_memory_bytes=2 * profile.weights_bytes, models={model: cost})},
            profiles={(model, kind): profile},
        ),
        slo_classes=tuple(
            SloClass(name=name, slo=DeadlineSlo(deadline_ms=deadlines[name] * 1000)) for name in names
        ),
        make_workload=_maker(point, [fitted(traces[name], context) for name in point.traces]),
    )


def fitted(trace: Trace, context: int) -> Lengths:
    """Cut the lengths of a trace to a context."""
    limits = LengthLimits(output_tokens_max=MAX_TOKENS)
    room = np.full(len(trace), context, dtype=np.int64)
    fit = limits.fit(trace.prompt_tokens, trace.output_tokens, room)
    return fit.prompt_tokens, fit.output_tokens


def capacity_rps(profile: Profile, lengths: Sequence[Lengths]) -> float:
    """Return requests per second of the estimator's steady state, with classes of equal shares."""
    prompt = np.concatenate([_resized(each[0]) for each in lengths]).astype(np.float64)
    output = np.concatenate([_resized(each[1]) for each in lengths]).astype(np.float64)
    return 1 / steady_state(profile, class_mean(prompt, output)).request_s


def class_mean(prompt: FloatArray, output: FloatArray) -> Mean:
    """Describe requests with known lengths, including the correlation of prompts and answers."""
    return Mean(
        prompt_tokens=float(prompt.mean()),
        output=Normal(float(output.mean()), float(output.var())),
        prompt_var=float(prompt.var()),
        prompt_bias=float((prompt * output).mean() / (prompt.mean() * output.mean())),
    )


def _resized(values: IntArray) -> IntArray:
    """Give all traces equal weight, whatever their numbers of rows."""
    return np.resize(values, 20_000)


def _maker(point: Point, lengths: Sequence[Lengths]) -> Callable[[Seeds], Workload]:
    rate_rps = capacity_rps(point.profile, lengths)

    def make(seeds: Seeds) -> Workload:
        total = point.warm_up + point.requests + point.followed
        slo_class = seeds.rng("classes").integers(0, len(lengths), total)
        rows = seeds.rng("lengths").random(total)
        prompt, output = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
        for cls, (prompts, outputs) in enumerate(lengths):
            own = slo_class == cls
            row = (rows[own] * len(prompts)).astype(np.int64)
            prompt[own], output[own] = prompts[row], outputs[row]
        return Workload(
            arrival_ns=_arrivals_ns(point, rate_rps, total, seeds.rng("arrivals")),
            model=np.zeros(total, dtype=np.int64),
            tenant=np.zeros(total, dtype=np.int64),
            slo_class=slo_class,
            prompt_tokens=prompt,
            output_tokens=output,
            max_tokens=np.full(total, MAX_TOKENS, dtype=np.int64),
        )

    return make


def _arrivals_ns(point: Point, rate_rps: float, total: int, rng: np.random.Generator) -> IntArray:
    """Return Poisson arrivals at the load; for a burst, after a warm-up at a low load and an idle time."""
    if point.load is not None:
        gaps_s = rng.exponential(1 / (rate_rps * point.load), total)
        return np.asarray(np.cumsum(gaps_s) * 1e9, dtype=np.int64)
    gaps_s = rng.exponential(1 / (rate_rps * WARM_UP_LOAD), WARM_UP)
    arrival_s = np.cumsum(gaps_s)
    # Even the longest answer of a full batch has ended by then.
    idle_s = 120 + MAX_TOKENS * 0.5
    burst_s = np.full(total - WARM_UP, arrival_s[-1] + idle_s)
    return np.asarray(np.concatenate([arrival_s, burst_s]) * 1e9, dtype=np.int64)
