"""Requests with objectives as parts with windows, in the times of the engines themselves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.motion.bound.work import Part, parts_of
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, Slo, TokenSlo
from qlm.simulator.prefixes import prefix_tokens
from qlm.simulator.scenario import Scenario, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A request with an objective.

    Attributes:
        model: Index of its model.
        parts: What it needs to meet its objective.
    """

    model: int
    parts: Sequence[Part]


def demands(scenario: Scenario, workload: Workload) -> list[Demand]:
    """Return the requests with objectives; batch work, which meets its own by being answered, is left out."""
    shared = prefix_tokens(workload)
    limits = [_least_context(scenario, m) for m in range(len(scenario.models))]
    delays_s = [_least_delay_s(scenario, m) for m in range(len(scenario.models))]
    room = np.array(limits)[workload.model] - workload.prompt_tokens
    outputs = np.maximum(1, np.minimum(np.minimum(workload.output_tokens, workload.max_tokens), room))
    confirmed_s = scenario.network.broker_s + scenario.network.store_s
    horizon_s = math.inf if scenario.horizon_s is None else scenario.horizon_s
    found = []
    for r in range(len(workload)):
        slo, m = scenario.slo_classes[int(workload.slo_class[r])].slo, int(workload.model[r])
        if isinstance(slo, BatchSlo):
            continue
        arrival_s, total = float(workload.arrival_ns[r]) / 1e9, int(outputs[r])
        first_s, last_s, first, last = _needs(slo, total)
        late_s = arrival_s - delays_s[m]
        parts = parts_of(
            begin_s=arrival_s + confirmed_s,
            ends_s=(min(late_s + first_s, horizon_s), min(late_s + last_s, horizon_s)),
            prompt=int(workload.prompt_tokens[r]),
            shared=int(shared[r]),
            outputs=(first, last),
        )
        found.append(Demand(model=m, parts=parts))
    return found


def _needs(slo: Slo, total: int) -> tuple[float, float, int, int]:
    """Return when the first outputs and all outputs are due after arrival, and how many these are."""
    match slo:
        case DeadlineSlo(deadline_ms=deadline_ms):
            return deadline_ms / 1e3, deadline_ms / 1e3, 0, total
        case TokenSlo(ttft_ms=ttft_ms, tpot_ms=None):
            return ttft_ms / 1e3, ttft_ms / 1e3, 1, 1
        case TokenSlo(ttft_ms=ttft_ms, tpot_ms=float() | int() as pause_ms):
            return ttft_ms / 1e3, (ttft_ms + (total - 1) * pause_ms) / 1e3, 1, total
        case ReadingSlo(ttft_ms=ttft_ms, tokens_per_s=pace):
            return ttft_ms / 1e3, ttft_ms / 1e3 + (total - 1) / pace, 1, total
    raise ValueError(f"an objective without a bound: {slo}")


def _least_context(scenario: Scenario, m: int) -> int:
    """Return the shortest context that any kind of instance gives a model."""
    model = scenario.models[m]
    of = [
        scenario.fleet.profiles[model.id, each.kind] for each in scenario.instances if model.id in each.models
    ]
    return min([model.context_tokens, *(min(p.context_tokens, p.kv_tokens) for p in of)])


def _least_delay_s(scenario: Scenario, m: int) -> float:
    """Return the least time from the end of an iteration to the client."""
    model = scenario.models[m].id
    kinds = {each.kind for each in scenario.instances if model in each.models}
    of_engine_s = min((scenario.true_profile(model, kind).request_ns / 1e9 for kind in kinds), default=0.0)
    return of_engine_s + scenario.network.notice_s
