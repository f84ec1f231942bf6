"""Architecture of a decoder-only transformer, as its `config.json` describes it."""

from dataclasses import dataclass
from typing import Final

from qlm.rct_estimator.roofline.attention import Attention

WINDOW_REFERENCE_TOKENS: Final = 2000
"""Length of the request for which the KV bytes per token of layers with a sliding window are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Experts of the layers that have some.

    Attributes:
        layers: Layers with experts.
        count: Experts per layer, those that every token uses aside.
        per_token: Experts of those that a token uses.
        intermediate: Inner width of an expert.
        shared_intermediate: Inner width of what every token uses beside them, in total.
    """

    layers: int
    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int = 0

    def touched(self, tokens: float) -> float:
        """Return the expected number of experts of a layer that are used, if all are as likely."""
        unused: float = (1.0 - self.per_token / self.count) ** tokens
        return self.count * (1.0 - unused)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """Bits per weight, with scales and zero points, and per number of the KV cache.

    Attributes:
        attention: Weights of attention.
        linear: Weights of layers without experts, and of shared experts.
        expert: Weights of experts.
        kv: Numbers in the KV cache, as vLLM's `--kv-cache-dtype auto` keeps them.
        eight_bit_floats: Products are computed with 8-bit floats where the accelerator can.
    """

    attention: float = 16.0
    linear: float = 16.0
    expert: float = 16.0
    kv: float = 16.0
    eight_bit_floats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder-only transformer.

    Attributes:
        hidden: Width of the hidden states.
        layers: Number of layers.
        vocabulary: Number of tokens in the vocabulary.
        intermediate: Inner width of a feed-forward layer without experts.
        matrices: Matrices of a feed-forward layer: 3 if it is gated, else 2.
        tied: Input and output embeddings are one matrix.
        attention: Attention of a layer.
        kv_layers: Layers whose KV cache grows with the whole context.
        window_layers: Layers whose KV cache covers a sliding window.
        window_tokens: Tokens of that window.
        experts: Its experts, if it has some.
        bits: Bits of its weights.
        context_tokens: Largest number of prompt plus output tokens.
    """

    hidden: int
    layers: int
    vocabulary: int
    intermediate: int
    matrices: int
    tied: bool
    attention: Attention
    kv_layers: int
    window_layers: int
    window_tokens: int
    experts: Experts | None
    bits: Bits
    context_tokens: int

    @property
    def parameters(self) -> int:
        """Number of weights; biases and norms, well under 1 %, are left out."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        all_experts = self.experts.count if self.experts else 0
        return embeddings + self._always + round(all_experts * self._per_expert)

    @property
    def active_parameters(self) -> int:
        """Number of weights that one token is multiplied with; looking up its embedding is no product."""
        per_token = self.experts.per_token if self.experts else 0
        return self.embedding_parameters + self._always + round(per_token * self._per_expert)

    @property
    def embedding_parameters(self) -> int:
        """Number of weights of one embedding matrix, of input or output."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters_per_token(self) -> int:
        """Number of weights that one token is multiplied with in the layers, output embedding aside."""
        return self.active_parameters - self.embedding_parameters

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights; embeddings and routers have 16 bits whatever the layers have."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        all_experts = self.experts.count if self.experts else 0
        return round(2 * embeddings + self._always_bytes + all_experts * self._expert_bytes)

    def bytes_read(self, tokens: float) -> float:
        """Return the bytes of weights that an iteration reads, the output embedding too."""
        touched = self.experts.touched(tokens) if self.experts else 0.0
        return 2 * self.embedding_parameters + self._always_bytes + touched * self._expert_bytes

    def kv_bytes_per_token(self, gpus: int = 1) -> int:
        """Return the bytes of KV cache of one token, over all GPUs.

        Layers with a sliding window count by the share of a request of 2000 tokens that they keep.
        """
        share = min(1.0, self.window_tokens / WINDOW_REFERENCE_TOKENS)
        layers = self.kv_layers + self.window_layers * share
        each = max(1, round(layers * self.attention.kv_values * self.bits.kv / 8))
        return each * self.attention.copies(gpus)

    @property
    def _dense(self) -> int:
        plain_layers = self.layers - (self.experts.layers if self.experts else 0)
        shared = self.experts.layers * self.experts.shared_intermediate if self.experts else 0
        return self.matrices * self.hidden * (plain_layers * self.intermediate + shared)

    @property
    def _attention(self) -> int:
        return self.layers * self.attention.parameters(self.hidden)

    @property
    def _routers(self) -> int:
        return self.experts.layers * self.experts.count * self.hidden if self.experts else 0

    @property
    def _always(self) -> int:
        """Weights of the layers that every token uses."""
        return self._attention + self._dense + self._routers

    @property
    def _always_bytes(self) -> float:
        bits = self._attention * self.bits.attention + self._dense * self.bits.linear + self._routers * 16
        return bits / 8

    @property
    def _per_expert(self) -> int:
        """Weights of the n-th expert of all layers that have experts."""
        if self.experts is None:
            return 0
        return self.experts.layers * self.matrices * self.hidden * self.experts.intermediate

    @property
    def _expert_bytes(self) -> float:
        return self._per_expert * self.bits.expert / 8
