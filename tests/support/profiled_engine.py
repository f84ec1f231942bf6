"""An emulated engine of known speed, and the prober that measures it."""

import random
from dataclasses import replace
from typing import Any

from qlm.cli.profiling.grid import Grid
from qlm.cli.profiling.measure import Prober
from qlm.domain.fleet import EngineCapacity
from qlm.rct_estimator.profiles.builtin import unmeasured_profile
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile
from support.virtual_engine import VirtualEngine

LARGE = EngineCapacity(kv_tokens=450_000, block_tokens=16, seqs_max=256, context_tokens=8192)

TRUTH = IterationTime(
    host_ms=1.0,
    linear_ms=((1, 11.0), (150, 11.5), (2048, 130.0)),
    kv_ms=8e-5,
    kv_mixed_ms=1.1e-4,
    sequence_ms=0.02,
    square_ms=2e-6,
)


def engine_profile(**changes: Any) -> Profile:
    plain = unmeasured_profile("m", "X", context_tokens=8192)
    known: dict[str, Any] = {
        "iteration": TRUTH,
        "kv_tokens": 200_000,
        "seqs_max": 64,
        "async_scheduling": False,
    }
    return replace(plain, **{**known, **changes})


def measured_by(engine: VirtualEngine, grid: Grid, context_tokens: int = 8192) -> Prober:
    return Prober(
        engine,
        batched_tokens_max=grid.batched_tokens_max,
        context_tokens=context_tokens,
        async_scheduling=engine.async_scheduling,
        clock_ns=engine.now_ns,
        rng=random.Random(1),
    )
