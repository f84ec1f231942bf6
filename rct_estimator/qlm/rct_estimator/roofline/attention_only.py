"""Refusal of models with other layers than attention: recurrent ones, convolutions, or both side by side."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.roofline.keys import Keys

_EXPECTED: Final = "layers with attention only: the weights of others are not modelled"

_OTHER_NAMES: Final = ("linear_attention", "mamba", "recurrent", "conv", "hybrid", "moe", "mlp")
"""Parts of the names of layers that have no attention, or more than attention."""

_OTHER_KINDS: Final = (
    "bailing_hybrid",
    "bailing_moe_linear",
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "hymba",
    "jamba",
    "jet_nemotron",
    "kimi_linear",
    "lfm2",
    "mamba",
    "minimax_m1",
    "minimax_text_01",
    "nemotron_h",
    "olmo_hybrid",
    "phi4flash",
    "plamo2",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
    "zamba",
)
"""Beginnings of `model_type` of models with such layers."""

_OTHER_SETTINGS: Final = ("mamba_", "ssm_")
"""Beginnings of keys that describe such layers."""


def _is_each(value: Any, layers: int) -> bool:
    return isinstance(value, list) and all(layer in value for layer in range(layers))


_ATTENTION_ONLY: Final[dict[str, Callable[[Any, int], bool]]] = {
    "attn_layer_indices": _is_each,
    "attn_layer_period": lambda value, _: bool(value == 1),
    "attn_type_list": lambda value, _: isinstance(value, list) and all(each == 1 for each in value),
    "full_attn_idxs": _is_each,
    "hybrid_override_pattern": lambda value, _: not value,  # without M, it has layers without feed-forward
    "linear_attn_config": lambda value, _: isinstance(value, Mapping) and value.get("kda_layers") == [],
}
"""Keys that say which layers have attention; whether a value and a number of layers mean all of them."""


def check_attention_only(keys: Keys, layers: int, kind: str) -> None:
    """Check that each layer of a model has attention, and nothing beside it but a feed-forward network.

    Args:
        keys: The model's configuration.
        layers: Number of its layers.
        kind: Its `model_type`.

    Raises:
        InvalidValueError: A key says otherwise; it is named.
    """
    for name in ("layers_block_type", "block_types"):
        refuse_others(keys, name, keys.names(name) or ())
    for name, only in _ATTENTION_ONLY.items():
        if (value := keys.get(name)) is not None and not only(value, layers):
            raise InvalidValueError(keys.path(name), value, _EXPECTED)
    if kind.startswith(_OTHER_KINDS):
        raise InvalidValueError(keys.path("model_type"), kind, _EXPECTED)
    _check_settings(keys)


def refuse_others(keys: Keys, name: str, names: tuple[str, ...]) -> None:
    """Refuse names of layers, as they are under a key or follow from it, that are of others than attention.

    Raises:
        InvalidValueError: Some are.
    """
    others = [each for each in names if any(part in each for part in _OTHER_NAMES)]
    if others:
        found = f"{len(others)} of {len(names)} {', '.join(sorted(set(others)))}"
        raise InvalidValueError(keys.path(name), found, _EXPECTED)


def _check_settings(keys: Keys) -> None:
    """Refuse settings of other layers, unless the kinds of all layers are said and were found to be plain."""
    if keys.get("layer_types", "layers_block_type", *_ATTENTION_ONLY) is not None:
        return
    for name, value in keys.plain.items():
        if str(name).startswith(_OTHER_SETTINGS) and value:
            raise InvalidValueError(keys.path(name), value, _EXPECTED)
