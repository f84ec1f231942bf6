"""Cache policy for vLLM's offloading connector: what ended requests leave is dropped first.

A batch policy preempts requests that come back within seconds or minutes. By recency alone, as in vLLM, what
ended last is kept longest, so blocks that only a new turn of a conversation may need displace those that a
waiting request needs for certain, and its text is computed again.
"""

from collections.abc import Sequence
from typing import Final

import vllm
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from qlm.agents.vllm_scheduler.version import check_version

check_version(vllm.__version__)

ENDED: Final = 1 << 62
"""Distance of the ranks of ended requests' blocks below all others; more than blocks are ever used."""


class EndedFirst(LRUCachePolicy):  # type: ignore[misc]  # vLLM's types are not here
    """Ended requests' blocks by recency, then those of open ones by recency."""

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: set[OffloadKey],
        reused_keys: set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """Rank the blocks of a request below those of all open ones."""
        self._next_rank -= ENDED
        super().on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)
        self._next_rank += ENDED

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """Note the begin of a load: an open request uses the block."""
        super().mark_non_evictable(key)
        self._assign_new_rank(key)
