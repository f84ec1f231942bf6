"""KV offload: keep the KV cache of a preempted request in host memory, or compute it again.

vLLM's offloading connector writes blocks through to host memory as they fill, and loads them when a resumed
request needs them. So swapping out is an abort like any preemption. What is decided here is if the connector
pays off for a model on an accelerator (QLM, insight 2), and if a KV cache is still in host memory: the pool
drops the least recently used blocks, and all of them when its engine sleeps.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.stats.work_meter import WorkMeter
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.host_memory import SwapCost
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.recompute import recompute_token_s


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSwapCost:
    """Cost of restoring a request's KV cache, for one model on one kind of accelerator.

    Attributes:
        host_tokens: Tokens whose KV cache fits into the host memory of one engine; 0 without any.
        recompute_s: Seconds to compute a prompt token again.
        load_s: Seconds to load its KV cache from host memory.
    """

    host_tokens: int
    recompute_s: float
    load_s: float

    @classmethod
    def of(cls, profile: Profile, host_kv_bytes: int) -> "KvSwapCost":
        """Estimate the cost from a profile.

        A load takes the bytes of the token's KV cache over the bandwidth of the host.
        """
        return cls(
            host_tokens=host_kv_bytes // profile.kv_bytes_per_token,
            recompute_s=recompute_token_s(profile),
            load_s=profile.kv_bytes_per_token / profile.host_bandwidth_bytes_per_s,
        )

    @property
    def swaps(self) -> bool:
        """True if loading is faster than computing; otherwise engines run without the connector."""
        return self.host_tokens > 0 and self.load_s < self.recompute_s


def host_kv_bytes(profile: Profile, size_bytes: int) -> int:
    """Return the host memory for KV blocks that an engine uses of `size_bytes`: all, or none."""
    return size_bytes if KvSwapCost.of(profile, size_bytes).swaps else 0


def host_kv_pools(
    profiles: Mapping[ModelId, Profile],
    wanted_bytes: Mapping[ModelId, int],
    host_memory_bytes: int,
    tiers: Collection[SwapTier],
) -> dict[ModelId, int]:
    """Return the KV pool of each engine of an instance: the host memory left beside sleeping weights.

    Weights come first. A sleeping engine keeps its pool but loses the contents. So a pool saves computing at
    most `host_tokens` once while its model is awake, whereas weights in host memory save the difference
    between a reload and a wake at each swap. By the shipped profiles that difference is 3 to 6 s on an A100,
    and a whole pool of 16 GiB is worth 1 to 8 s. Pools are therefore as large as possible with all models but
    one asleep in the best of `tiers`, for any awake model; all of one size, or smaller where less is wanted.

    Args:
        profiles: Of each model of the instance.
        wanted_bytes: Largest pool of each engine, see `host_kv_bytes`.
        host_memory_bytes: Memory for everything that sleeps.
        tiers: Tiers in which models may sleep; engines that cannot sleep leave the whole memory.

    Returns:
        Bytes of each engine's pool; 0 where a pool is not worth its memory.
    """
    best = next((tier for tier in (SwapTier.WARM, SwapTier.RELOAD) if tier in tiers), None)
    if best is None:
        return dict(wanted_bytes)
    asleep_bytes = {model: SwapCost.of(profile).holds_bytes(best) for model, profile in profiles.items()}
    left_bytes = host_memory_bytes - sum(asleep_bytes.values())
    size_bytes = max(wanted_bytes.values(), default=0)
    for awake in profiles:
        others = sum(1 for model, wanted in wanted_bytes.items() if wanted and model != awake)
        if others:
            size_bytes = min(size_bytes, max(0, left_bytes + asleep_bytes[awake]) // others)
    pools = {model: min(wanted, size_bytes) for model, wanted in wanted_bytes.items()}
    return {model: host_kv_bytes(profiles[model], pool) for model, pool in pools.items()}


def kept_in_host(costs: Mapping[ModelId, KvSwapCost], work: WorkMeter, tracked: TrackedRequest) -> bool:
    """Return True if the KV cache of a request is still in host memory.

    Its blocks are written or used when its generation starts. The pool has dropped none of them while the
    engine has written no more than the pool holds since then.
    """
    cost = costs.get(tracked.request.model)
    if cost is None or not cost.swaps or tracked.generation.kv_meter is not work:
        return False
    return work.written_tokens - tracked.generation.kv_written <= cost.host_tokens
