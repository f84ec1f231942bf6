"""Small scenarios for tests: a fleet of emulated kinds, and a few requests."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.fleet import Fleet
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.slo import BatchSlo, DeadlineSlo, TokenSlo
from qlm.planner.problem import Kind, ModelCost
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.results import SimulationResult
from qlm.simulator.rules import policy_named
from qlm.simulator.scenario import Fault, Network, Scenario, SimulatedInstance, SloClass, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.simulation import SimulationObserver, simulate

SMALL, LARGE = ModelId("mistral-7b"), ModelId("vicuna-13b")
CHAT = SloClass(name="chat", slo=TokenSlo(ttft_ms=2000, tpot_ms=100))
REPORT = SloClass(name="report", slo=DeadlineSlo(deadline_ms=60_000))
BATCH = SloClass(name="batch", slo=BatchSlo())


def profiles(
    kind: str = "A100", models: Sequence[ModelId] = (SMALL, LARGE)
) -> dict[tuple[ModelId, str], Profile]:
    """Return the shipped profiles of the models on one kind."""
    shipped = builtin_profiles()
    return {(model, kind): find_profile(shipped, model, kind, 1) for model in models}


def workload(
    requests: int,
    *,
    rate_rps: float,
    models: int = 1,
    output_tokens: float = 60.0,
    prompt_tokens: float = 300.0,
    classes: int = 3,
) -> Callable[[Seeds], Workload]:
    """Return a maker of Poisson arrivals with log-normal lengths."""

    def make(seeds: Seeds) -> Workload:
        lengths, arrivals, kinds = (seeds.rng(name) for name in ("lengths", "arrivals", "kinds"))
        return Workload(
            arrival_ns=np.cumsum(arrivals.exponential(1e9 / rate_rps, requests)).astype(np.int64),
            model=kinds.integers(0, models, requests),
            tenant=np.zeros(requests, dtype=np.int64),
            slo_class=kinds.integers(0, classes, requests),
            prompt_tokens=np.clip(lengths.lognormal(np.log(prompt_tokens), 0.8, requests), 1, 3000).astype(
                np.int64
            ),
            output_tokens=np.clip(lengths.lognormal(np.log(output_tokens), 0.8, requests), 1, 900).astype(
                np.int64
            ),
            max_tokens=np.full(requests, 512, dtype=np.int64),
        )

    return make


def scenario(
    make_workload: Callable[[Seeds], Workload],
    *,
    instances: int = 2,
    models: Sequence[ModelId] = (SMALL,),
    kind: str = "A100",
    faults: tuple[Fault, ...] = (),
    host_memory_bytes: int = 64 * 10**9,
    horizon_s: float | None = None,
    append_interval_s: float = 1.0,
    queue_depth_max: int = 1_000_000,
) -> Scenario:
    """Build a scenario of like instances that can serve all models."""
    speeds = profiles(kind, models)
    costs = {
        model: ModelCost(
            weights_bytes=profile.weights_bytes,
            swap_warm_s=profile.swap_warm_s,
            swap_cold_s=profile.swap_cold_s,
            unload_s=profile.unload_s,
        )
        for (model, _), profile in speeds.items()
    }
    return Scenario(
        name="test",
        models=tuple(ModelSpec(id=model, tokenizer="byte", context_tokens=8192) for model in models),
        instances=tuple(
            SimulatedInstance(id=InstanceId(f"i{n}"), kind=kind, models=tuple(models))
            for n in range(instances)
        ),
        fleet=Fleet(kinds={kind: Kind(host_memory_bytes=host_memory_bytes, models=costs)}, profiles=speeds),
        slo_classes=(CHAT, REPORT, BATCH),
        make_workload=make_workload,
        network=Network(),
        faults=faults,
        controller=ControllerSettings(),
        horizon_s=horizon_s,
        append_interval_s=append_interval_s,
        queue_depth_max=queue_depth_max,
    )


def run(
    subject: Scenario, *, policy: str = "edf", seed: int = 1, observer: SimulationObserver | None = None
) -> SimulationResult:
    """Simulate it."""
    return simulate(subject, policy_named(policy), seed, stopwatch_s=time.perf_counter, observer=observer)
