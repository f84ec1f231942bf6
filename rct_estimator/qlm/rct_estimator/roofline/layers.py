"""Layers of a model by what they keep in the KV cache, from its `config.json`."""

from dataclasses import dataclass
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.roofline.attention_only import check_attention_only, refuse_others
from qlm.rct_estimator.roofline.keys import Keys

_INTERVAL_UNSAID: Final = ("qwen3_next", "qwen3_5", "qwen4_exp")
"""Beginnings of `model_type` with full attention in every fourth layer only, where the file does not say."""


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Layers with a KV cache.

    Attributes:
        full: Layers that cache the whole context.
        windows: Layers that cache a sliding window.
        window_tokens: Tokens of that window; 0 without such layers.
    """

    full: int
    windows: int
    window_tokens: int


def cached_layers(keys: Keys, layers: int, kind: str) -> CachedLayers:
    """Return the layers with a KV cache.

    Args:
        keys: The model's configuration.
        layers: Number of its layers.
        kind: Its `model_type`.

    Raises:
        InvalidValueError: A layer has not attention alone, or `layer_types` does not name each layer.
    """
    kinds = _kinds(keys, layers, kind)
    check_attention_only(keys, layers, kind)
    # As in vLLM, a window of 0 is none.
    window_tokens = keys.whole("sliding_window", "attention_chunk_size", default=0, least=0)
    windows = _windows(keys, layers, kind, kinds) if window_tokens else 0
    return CachedLayers(layers - windows, windows, window_tokens if windows else 0)


def _kinds(keys: Keys, layers: int, kind: str) -> tuple[str, ...] | None:
    kinds = keys.names("layer_types")
    if kinds is None and (keys.get("full_attention_interval") or kind.startswith(_INTERVAL_UNSAID)):
        interval = keys.whole("full_attention_interval", default=4)
        kinds = tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers))
    if kinds is None:
        return None
    if len(kinds) != layers:
        raise InvalidValueError(
            keys.path("layer_types"), list(kinds), f"one name for each of {layers} layers"
        )
    refuse_others(keys, "layer_types", kinds)
    return kinds


def _windows(keys: Keys, layers: int, kind: str, kinds: tuple[str, ...] | None) -> int:
    """Return the number of layers with a window, in a model that has one."""
    if kinds is not None:
        return sum("full" not in each for each in kinds)
    if keys.get("use_sliding_window") is False:
        return 0
    pattern = keys.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        # Letters of EXAONE 4, repeated: local or global attention. The last layer is global in any case.
        return sum(pattern[i % len(pattern)] != "G" for i in range(layers - 1))
    if pattern is not None:
        return layers - (layers // keys.whole("sliding_window_pattern") if isinstance(pattern, int) else 0)
    return layers - layers // 2 if kind.startswith("gemma2") else layers
