"""Shapes of the models of the shipped profiles, from their configurations."""

from dataclasses import dataclass
from typing import Final

BYTES: Final = 2
"""Of a parameter and of an entry of the KV cache: 16 bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a dense decoder reads and computes per token.

    Attributes:
        layers: Number of layers.
        hidden: Width of the residual stream.
        heads: Heads of the queries.
        kv_heads: Heads of keys and values.
        head_dim: Width of a head.
        feed_forward: Width between the gated projections.
        vocabulary: Rows of the output projection.
        context_tokens: Longest text of the profile.
        context_source: Where that comes from.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    feed_forward: int
    vocabulary: int
    context_tokens: int = 4096
    context_source: str = ""

    @property
    def layer_parameters(self) -> int:
        """Parameters of all linear layers but the output projection."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.feed_forward)

    @property
    def output_parameters(self) -> int:
        """Parameters of the output projection."""
        return self.hidden * self.vocabulary

    @property
    def read_bytes(self) -> int:
        """Weights that an iteration reads: all but the table of embeddings."""
        return BYTES * (self.layer_parameters + self.output_parameters)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache of one token."""
        return 2 * BYTES * self.layers * self.kv_heads * self.head_dim

    @property
    def pair_flops(self) -> int:
        """Operations of the attention of all layers for a pair of tokens."""
        return 4 * self.layers * self.heads * self.head_dim


MODELS: Final = {
    "mistral-7b": Shape(
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        feed_forward=14336,
        vocabulary=32000,
        context_tokens=32768,
        context_source="max_position_embeddings of the model's configuration (v0.2 and later).",
    ),
    "llama-3-8b": Shape(
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        feed_forward=14336,
        vocabulary=128256,
        context_tokens=8192,
        context_source="max_position_embeddings of the model's configuration.",
    ),
    "vicuna-13b": Shape(
        layers=40,
        hidden=5120,
        heads=40,
        kv_heads=40,
        feed_forward=13824,
        vocabulary=32000,
        context_source="max_position_embeddings of the model's configuration (v1.5).",
    ),
    "llama-70b": Shape(
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        feed_forward=28672,
        vocabulary=32000,
        context_source="max_position_embeddings of the configuration of Llama-2-70B.",
    ),
}
"""Of the shipped profiles."""

OTHERS: Final = {
    "llama-2-7b": Shape(layers=32, hidden=4096, heads=32, kv_heads=32, feed_forward=11008, vocabulary=32000),
    "llama-3-70b": Shape(layers=80, hidden=8192, heads=64, kv_heads=8, feed_forward=28672, vocabulary=128256),
    "qwen-2-7b": Shape(layers=28, hidden=3584, heads=28, kv_heads=4, feed_forward=18944, vocabulary=152064),
    "qwen-2.5-72b": Shape(
        layers=80, hidden=8192, heads=64, kv_heads=8, feed_forward=29568, vocabulary=152064
    ),
    "qwen-3-8b": Shape(layers=36, hidden=4096, heads=32, kv_heads=8, feed_forward=12288, vocabulary=151936),
    "qwen-3-14b": Shape(layers=40, hidden=5120, heads=40, kv_heads=8, feed_forward=17408, vocabulary=151936),
    "qwen-3-32b": Shape(layers=64, hidden=5120, heads=64, kv_heads=8, feed_forward=25600, vocabulary=151936),
}
"""Others of published measurements, to judge the constants by."""

WEIGHTS_BILLION: Final = {"mistral-7b": 7.24, "llama-3-8b": 8.03, "vicuna-13b": 13.016, "llama-70b": 68.977}
"""Parameters, billions."""
