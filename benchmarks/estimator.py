"""Processor time of the estimates of a cluster view: `python -m benchmarks.estimator`.

1600 groups of 40 classes over 10 models on 100 instances of 2 kinds. Each queue has two models on average, so
model swaps are included.
"""

import math
import time
from collections.abc import Callable

import numpy as np

from qlm.rct_estimator.cluster.arrays import Groups, Instances, Overtakers
from qlm.rct_estimator.cluster.estimate import estimate
from qlm.rct_estimator.cluster.service_table import (
    ClassOnKind,
    ServiceTable,
    SwapTimes,
    class_times,
    service_table,
)
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.output_length import observe_all, typical_prior
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.workload import class_workload

INSTANCES, GROUPS, CLASSES, MODELS, KINDS = 100, 1600, 40, 10, 2
ROUNDS = 50


def main() -> int:
    """Print the table."""
    rng = np.random.default_rng(0)
    table, instances, groups = make_table(rng), make_instances(rng), make_groups(rng)
    orders = [np.sort(part) for part in np.array_split(rng.permutation(GROUPS), INSTANCES)]
    others = make_overtakers(np.random.default_rng(1))
    print(f"{GROUPS} groups, {INSTANCES} instances, {CLASSES} classes; ms, of {ROUNDS} rounds")
    print("                          median     P95     max")
    show("the whole view", lambda: estimate(table, instances, groups, orders, others))
    show("the table of the classes", lambda: make_table(np.random.default_rng(0)), rounds=5)
    return 0


def show(what: str, act: Callable[[], object], rounds: int = ROUNDS) -> None:
    times_ms = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        act()
        times_ms.append((time.perf_counter() - started_s) * 1000)
    median, p95 = np.quantile(times_ms, [0.5, 0.95])
    print(f"{what:<24} {median:8.2f}{p95:8.2f}{max(times_ms):8.2f}")


def make_table(rng: np.random.Generator) -> ServiceTable:
    entries = {}
    for cls in range(CLASSES):
        seen = rng.lognormal(math.log(150), 0.8, 200).round() + 1
        lengths = observe_all(typical_prior(1024), seen, np.zeros(200, dtype=bool)).predictive()
        for kind in range(KINDS):
            state = SteadyState(
                workload=class_workload(lengths, 500.0, 1024.0),
                batch=64.0,
                request_s=0.1 * (1 + kind),
                iteration_s=0.03 * (1 + kind),
                decode_s=0.028 * (1 + kind),
                alone_s=0.02 * (1 + kind),
                prefill_s=0.1 * (1 + kind),
                prompt_s=0.02 * (1 + kind),
            )
            entry = ClassOnKind(state=state, lengths=lengths, cap=1024.0)
            entries[cls, kind] = class_times(entry, first_token=cls % 4 == 0)
    swaps = {
        (model, kind): SwapTimes(warm_s=2.0, cold_s=30.0, unload_s=1.0)
        for model in range(MODELS)
        for kind in range(KINDS)
    }
    models = [cls % MODELS for cls in range(CLASSES)]
    return service_table(models, entries, swaps, kinds=KINDS)


def make_instances(rng: np.random.Generator) -> Instances:
    busy = Normal(1.0, 1.0)
    return Instances(
        kind=rng.integers(0, KINDS, INSTANCES),
        loaded=rng.integers(0, MODELS, INSTANCES),
        warm=rng.random((INSTANCES, MODELS)) < 0.3,
        busy_s=np.full(INSTANCES, busy.mean),
        busy_var=np.full(INSTANCES, busy.var),
        free=np.zeros(INSTANCES),
        speed=np.exp(rng.normal(0, 0.1, INSTANCES)),
        uncertainty=np.full(INSTANCES, 0.05),
        load=np.zeros(INSTANCES),
    )


def make_overtakers(rng: np.random.Generator) -> Overtakers:
    """Build overtakers: all classes on all instances, a fifth of them without a deadline."""
    target_s = np.where(np.arange(CLASSES) % 5 == 0, np.inf, rng.uniform(1, 400, CLASSES))
    each = np.ones((INSTANCES, CLASSES))
    return Overtakers(
        target_s=np.where(np.eye(CLASSES) > 0, np.inf, target_s),
        share=0.5 / CLASSES * each,
        rate_rps=5 / CLASSES * each,
        work_dispersion_s=0.2 * each,
        share_cv2=0.05**2 * each,
        prompt_tokens=np.full(CLASSES, 500.0),
        repeated=rng.uniform(0, 10_000, INSTANCES),
        busy_s=np.full(INSTANCES, 300.0),
    )


def make_groups(rng: np.random.Generator) -> Groups:
    return Groups(
        cls=np.sort(rng.integers(0, CLASSES, GROUPS)),
        requests=rng.integers(1, 256, GROUPS).astype(np.float64),
        deadline_s=np.where(rng.random(GROUPS) < 0.2, np.inf, rng.uniform(1, 400, GROUPS)),
        deadline_span_s=rng.uniform(0, 10, GROUPS),
    )


if __name__ == "__main__":
    raise SystemExit(main())
