"""Sizes and settings of the simulated cluster."""

from typing import Final

from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.progress import WatchSettings
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.fleet import Fleet
from qlm.domain.fleet import EngineCapacity, ModelSpec
from qlm.domain.ids import ModelId
from qlm.gateway.core.limits import GatewayLimits
from qlm.planner.problem import Kind, ModelCost
from qlm.rct_estimator.profiles.builtin import unmeasured_profile
from simulation.workload import MODELS

ACCELERATOR: Final = "A10"
CONTEXT_TOKENS: Final = 256
CAPACITY: Final = EngineCapacity(kv_tokens=512, block_tokens=16, seqs_max=5, context_tokens=CONTEXT_TOKENS)
WEIGHTS_BYTES: Final = 10
HOST_MEMORY_BYTES: Final = 15
"""Enough for one sleeping model, too little for two."""

GATEWAYS: Final = ("gateway-0", "gateway-1")
CONTROLLERS: Final = ("controller-0", "controller-1")
INSTANCES: Final = {"gpu-0": MODELS, "gpu-1": MODELS, "gpu-2": MODELS[1:]}
DOUBLES: Final = {f"{name}-double": name for name in INSTANCES}
"""Second agents, each of an instance that has one, on another machine; none runs without a fault."""

LIMITS: Final = GatewayLimits(
    poll_max_s=4.0, unknown_after_s=12.0, resume_grace_stream_s=3.0, publish_timeout_s=6.0, encode_threads=1
)
WATCH: Final = WatchSettings(silence_s=1.5, first_token_s=2.0, restarts_max=3, out_s=10.0)
AGENT: Final = AgentSettings(
    delivery_renewal_s=6.0, append_interval_s=0.25, append_at_once_max=0, watch=WATCH
)
CONTROLLER: Final = ControllerSettings(demotes=True, swap_hysteresis=True, min_interval_s=0.8, linger_s=5.0)

SPECS: Final = tuple(ModelSpec(id=model, tokenizer="byte", context_tokens=CONTEXT_TOKENS) for model in MODELS)


def make_fleet() -> Fleet:
    """Return what controllers know of instances."""
    costs = {
        model: ModelCost(weights_bytes=WEIGHTS_BYTES, swap_warm_s=0.2, swap_cold_s=1.0, unload_s=0.1)
        for model in MODELS
    }
    profile = {
        model: unmeasured_profile(model, ACCELERATOR, context_tokens=CONTEXT_TOKENS) for model in MODELS
    }
    return Fleet(
        kinds={ACCELERATOR: Kind(host_memory_bytes=HOST_MEMORY_BYTES, models=costs)},
        profiles={(ModelId(model), ACCELERATOR): each for model, each in profile.items()},
    )
