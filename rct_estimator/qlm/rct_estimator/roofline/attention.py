"""Attention of a transformer layer: parameters, bytes and operations per token."""

from dataclasses import dataclass
from typing import Protocol


class Attention(Protocol):
    """What the roofline needs to know of a layer's attention."""

    @property
    def heads(self) -> int:
        """Query heads."""

    @property
    def kv_values(self) -> int:
        """Numbers that one token adds to the KV cache of one layer."""

    @property
    def grouped(self) -> bool:
        """Several query heads share a KV head."""

    @property
    def pair_flops(self) -> int:
        """Operations for one pair of tokens of a prompt."""

    @property
    def read_flops(self) -> int:
        """Operations for one token of context that a decode reads."""

    def parameters(self, hidden: int) -> int:
        """Return the number of weights, for hidden states of that many numbers."""

    def copies(self, gpus: int) -> int:
        """Return how often each token's KV is kept if the heads are spread over that many GPUs."""

    def spreads(self, gpus: int) -> bool:
        """Return whether vLLM can spread the heads over that many GPUs."""


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Multi-head, grouped-query or multi-query attention.

    Attributes:
        heads: Query heads.
        kv_heads: Heads of keys and values.
        head_dim: Numbers per head.
    """

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def kv_values(self) -> int:
        """Numbers that one token adds to the KV cache of one layer."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def grouped(self) -> bool:
        """Several query heads share a KV head."""
        return self.heads > self.kv_heads

    @property
    def pair_flops(self) -> int:
        """Operations for one pair of tokens of a prompt."""
        return 4 * self.heads * self.head_dim

    @property
    def read_flops(self) -> int:
        """Operations for one token of context that a decode reads."""
        return self.pair_flops

    def parameters(self, hidden: int) -> int:
        """Return the number of weights of queries, keys, values and output."""
        return 2 * hidden * (self.heads + self.kv_heads) * self.head_dim

    def copies(self, gpus: int) -> int:
        """Return how often each token's KV is kept: once, unless there are fewer KV heads than GPUs."""
        return max(1, gpus // self.kv_heads)

    def spreads(self, gpus: int) -> bool:
        """Return whether each GPU gets as many heads, and whole KV heads."""
        return self.heads % gpus == 0 and (self.kv_heads % gpus == 0 or gpus % self.kv_heads == 0)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): keys and values are computed from one latent vector per token.

    Attributes:
        heads: Query heads.
        q_rank: Numbers in the latent vector of queries; None if they are projected directly.
        kv_rank: Numbers in the latent vector of keys and values.
        rope_dim: Numbers per key that carry the position, shared by the heads.
        nope_dim: Numbers per head and key that do not.
        v_dim: Numbers per head and value.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int

    @property
    def kv_values(self) -> int:
        """Numbers that one token adds to the KV cache of one layer."""
        return self.kv_rank + self.rope_dim

    @property
    def grouped(self) -> bool:
        """Several query heads share a KV head: all of them."""
        return True

    @property
    def pair_flops(self) -> int:
        """Operations for one pair of tokens of a prompt; keys and values are expanded first."""
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim)

    @property
    def read_flops(self) -> int:
        """Operations for one token of context that a decode reads, on the latent vectors themselves."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim)

    def parameters(self, hidden: int) -> int:
        """Return the number of weights of queries, latent vectors, keys, values and output."""
        query = self.heads * (self.nope_dim + self.rope_dim)
        queries = hidden * query if self.q_rank is None else (hidden + query) * self.q_rank
        latent = hidden * (self.kv_rank + self.rope_dim)
        expanded = self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        return queries + latent + expanded + hidden * self.heads * self.v_dim

    def copies(self, gpus: int) -> int:
        """Return how often each token's KV is kept: on every GPU, since all heads read the same."""
        return gpus

    def spreads(self, gpus: int) -> bool:
        """Return whether each GPU gets as many heads."""
        return self.heads % gpus == 0
