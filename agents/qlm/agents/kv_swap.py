"""Evict or swap: whether what a request has in the KV cache is kept in host memory, or computed again.

vLLM's offloading connector writes blocks through to host memory as they fill, and loads them when a resumed
request asks for them. So swapping out is an abort like an eviction, and what is decided here is whether the
connector is worth running for a model on an accelerator (QLM, insight 2), and what can be expected of it: the
pool gives up what was used longest ago, and the whole pool goes when its engine sleeps.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qlm.agents.host_memory import SwapCost
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.profile import Profile

if TYPE_CHECKING:
    from qlm.agents.held import Held
    from qlm.agents.protocol import AgentProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSwapCost:
    """What it costs to bring a request's KV cache back, for one model on one kind of accelerator.

    Attributes:
        host_tokens: Tokens whose KV cache fits into the host memory of one engine; 0 if it has none.
        recompute_s: Seconds to compute a token of the prompt again.
        load_s: Seconds to load its KV cache from host memory.
    """

    host_tokens: int
    recompute_s: float
    load_s: float

    @classmethod
    def of(cls, profile: Profile, host_kv_bytes: int) -> "KvSwapCost":
        """Estimate by a profile.

        A prefill grows by `alpha + gamma` with each token of one prompt (SLO-aware annealing, equation 14);
        what the iteration itself takes is paid either way, since the last token is always computed. A load
        takes the bytes of the token's KV cache over the bandwidth of the host.
        """
        return cls(
            host_tokens=host_kv_bytes // profile.kv_bytes_per_token,
            recompute_s=(profile.prefill.alpha + profile.prefill.gamma) / 1000,
            load_s=profile.kv_bytes_per_token / profile.host_bandwidth_bytes_per_s,
        )

    @property
    def swaps(self) -> bool:
        """Whether requests are swapped: else they are evicted, and their engines run without a connector."""
        return self.host_tokens > 0 and self.load_s < self.recompute_s


def host_kv_bytes(profile: Profile, size_bytes: int) -> int:
    """Return how much of the host memory meant for it an engine uses: all, or none if that costs more."""
    return size_bytes if KvSwapCost.of(profile, size_bytes).swaps else 0


def host_kv_pools(
    profiles: Mapping[ModelId, Profile],
    wanted_bytes: Mapping[ModelId, int],
    host_memory_bytes: int,
    tiers: Collection[SwapTier],
) -> dict[ModelId, int]:
    """Say how much host memory each engine of an instance gets for KV blocks: what sleeping weights leave.

    A sleeping engine keeps its pool, but not what is in it. So a pool can save computing `host_tokens` again
    once in each stay of its model, if so much is evicted at all, while weights in host memory save the step
    from a reload to a wake at each swap. By the shipped profiles that step is 3 to 6 s on an A100 and a whole
    pool of 16 GiB 1 to 8 s. Weights therefore come first: pools are as large as they can be with all models
    but one asleep in the best of `tiers`, whichever that one is, all of one size or as large as wanted.

    Args:
        profiles: Of each model of the instance.
        wanted_bytes: Pool of each engine at most; 0 for none. See `host_kv_bytes`.
        host_memory_bytes: For all that sleeps.
        tiers: In which models may sleep; engines that cannot sleep leave the whole memory.

    Returns:
        Bytes of the pool of each engine's model; 0 where none is worth its place.
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


def kept_in_host(agent: "AgentProtocol", held: "Held") -> bool:
    """Whether the KV cache of a request is still in host memory, by what its engine has written since.

    Blocks are written or used anew when a leg starts; so long as no more than the pool has been written since
    then, none of them has been given up.
    """
    cost = agent.costs.kv.get(held.request.model)
    if cost is None or not cost.swaps or held.kv_meter is not agent.work:
        return False
    return agent.work.written_tokens - held.kv_written <= cost.host_tokens
