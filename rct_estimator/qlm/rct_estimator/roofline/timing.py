"""Duration of an iteration from the roofline: what takes longer, reading weights or computing with them."""

from dataclasses import dataclass
from typing import Final

from qlm.rct_estimator.profiles.accelerators import Accelerator
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.roofline import shares
from qlm.rct_estimator.roofline.architecture import Architecture

_VALUE_BYTES: Final = 2
"""Bytes per number of hidden states."""

TOKENS: Final = tuple(1 << power for power in range(15))
"""Tokens at which the time of linear layers is tabulated: 1 to 16384."""

_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model on one accelerator or several, joined by tensor parallelism.

    Attributes:
        model: Its architecture.
        accelerator: One of them.
        gpus: Their number.
    """

    model: Architecture
    accelerator: Accelerator
    gpus: int

    def iteration(self) -> IterationTime:
        """Return the coefficients of the duration of an iteration, milliseconds."""
        return IterationTime(
            host_ms=shares.HOST_MS,
            linear_ms=tuple((float(tokens), _rounded(self.linear_ms(tokens))) for tokens in TOKENS),
            kv_ms=_rounded(self._kv_ms),
            sequence_ms=_rounded(self._sequence_ms),
            square_ms=_rounded(self._square_ms),
        )

    def linear_ms(self, tokens: float) -> float:
        """Return the time of linear layers and all-reduces, milliseconds."""
        model, share = self.model, shares.shares_of(self.accelerator)
        read_s = model.bytes_read(tokens) / (share.bandwidth * self._bandwidth)
        compute_s = 2 * model.layer_parameters_per_token * tokens / (share.flops * self._flops)
        vectors = model.layers * shares.TRAFFIC_VECTORS * tokens
        traffic_s = vectors * model.hidden * _VALUE_BYTES / self.accelerator.bandwidth_bytes_per_s
        longer_s: float = (read_s**shares.KNEE + compute_s**shares.KNEE) ** (1 / shares.KNEE)
        return self._kernels_ms + 1e3 * (longer_s + traffic_s) + self.reduce_ms(tokens)

    def reduce_ms(self, tokens: float) -> float:
        """Return the time of the two all-reduces per layer, milliseconds."""
        if self.gpus == 1:
            return 0.0
        message = tokens * self.model.hidden * _VALUE_BYTES
        sent = 2 * (self.gpus - 1) / self.gpus * message
        each_s = sent / (shares.REDUCE_BANDWIDTH * self.accelerator.peer_link_bytes_per_s)
        return 2 * self.model.layers * (shares.REDUCE_US / 1e3 + 1e3 * each_s)

    @property
    def floor_ms(self) -> float:
        """Time to read the weights that one token needs, milliseconds."""
        share = shares.shares_of(self.accelerator).bandwidth
        return 1e3 * self.model.bytes_read(1) / (share * self._bandwidth)

    @property
    def slope_ms(self) -> float:
        """Time to compute one more token of a large batch, milliseconds."""
        share = shares.shares_of(self.accelerator).flops
        return 1e3 * 2 * self.model.layer_parameters_per_token / (share * self._flops)

    @property
    def kv_share(self) -> float:
        """Share of the bandwidth at which attention reads the KV cache."""
        grouped = self.model.attention.grouped
        return shares.shares_of(self.accelerator).kv_grouped if grouped else shares.KV_BANDWIDTH

    @property
    def _bandwidth(self) -> float:
        return self.accelerator.bandwidth_bytes_per_s * self.gpus

    @property
    def _flops(self) -> float:
        doubled = self.model.bits.eight_bit_floats and self.accelerator.fp8
        return self._flops_16 * (2 if doubled else 1)

    @property
    def _flops_16(self) -> float:
        return self.accelerator.flops_per_s * self.gpus

    @property
    def _kernels_ms(self) -> float:
        """Time of small kernels, which more GPUs do not shorten, milliseconds."""
        experts = self.model.experts
        with_experts_us = experts.layers * shares.EXPERT_LAYER_US if experts else 0.0
        return (self.model.layers * shares.shares_of(self.accelerator).layer_us + with_experts_us) / 1e3

    @property
    def _kv_ms(self) -> float:
        read_s = self.model.kv_bytes_per_token(self.gpus) / (self.kv_share * self._bandwidth)
        layers = self.model.kv_layers + self.model.window_layers
        flops = layers * self.model.attention.read_flops
        return 1e3 * max(read_s, flops / (shares.READ_FLOPS * self._flops_16))

    @property
    def _square_ms(self) -> float:
        flops = self.model.layers * self.model.attention.pair_flops
        return 1e3 * flops / (shares.shares_of(self.accelerator).pair_flops * self._flops_16)

    @property
    def _sequence_ms(self) -> float:
        """Sampling, and the output embedding, which multiplies one token per sequence."""
        share = shares.shares_of(self.accelerator).flops
        return shares.SEQUENCE_MS + 1e3 * 2 * self.model.embedding_parameters / (share * self._flops_16)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
