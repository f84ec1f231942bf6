"""Reading of a model's `config.json` (the format of Hugging Face)."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.roofline.architecture import Architecture, Experts
from qlm.rct_estimator.roofline.attention import Attention, GroupedAttention, LatentAttention
from qlm.rct_estimator.roofline.keys import Keys
from qlm.rct_estimator.roofline.layers import cached_layers
from qlm.rct_estimator.roofline.quantization import bits_of

_NESTED: Final = ("text_config", "llm_config", "language_config")
"""Where models of several modalities keep the configuration of their language model."""

_UNGATED: Final = ("bloom", "falcon", "gpt", "nemotron", "opt", "persimmon", "phi", "starcoder", "xglm")
_GATED_NEVERTHELESS: Final = ("gpt_oss", "phi3", "phi4", "phimoe")
"""Beginnings of `model_type`: feed-forward layers of two matrices, and exceptions."""

_TIED: Final = (
    *("bloom", "cohere", "ernie4_5", "falcon", "gemma", "gpt2", "gpt_bigcode", "jetmoe", "minicpm3", "opt"),
    *("smollm3", "starcoder2", "vaultgemma"),
)
"""Beginnings of `model_type` whose embeddings are tied where the file does not say."""

_GEMMA_3: Final = MappingProxyType(
    {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    }
)
_UNSAID: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType(
    {"gemma3": _GEMMA_3, "gemma3_text": _GEMMA_3}
)
"""Defaults of the transformers library by `model_type`, of models whose files leave them out."""

_HEADS: Final = ("num_attention_heads", "n_head", "n_heads")
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN: Final = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "num_experts_per_token")
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_POSITIONS_UNSAID: Final = 2048
"""What vLLM assumes where none of these is there."""


def parse_config_text(text: str, where: str) -> Architecture:
    """Read the text of a `config.json`; see `parse_config`."""
    try:
        mapping = json.loads(text)
    except ValueError as error:
        raise InvalidValueError(where, str(error), "JSON") from None
    except RecursionError:
        raise InvalidValueError(where, "nested too deeply", "JSON, as in a model's config.json") from None
    return parse_config(mapping, where)


def parse_config(mapping: object, where: str) -> Architecture:
    """Read a model's configuration.

    Args:
        mapping: Content of its `config.json`.
        where: File name, for messages.

    Raises:
        InvalidValueError: A key is missing or has an unusable value; names file and key.
    """
    if not isinstance(mapping, Mapping):
        raise InvalidValueError(where, mapping, "a JSON object, as in a model's config.json")
    keys = Keys(_with_unsaid(_language_model(mapping)), f"{where}: ")
    hidden = keys.whole("hidden_size", "n_embd", "d_model")
    layers = keys.whole(*_LAYERS)
    kind = _kind(keys)
    cached = cached_layers(keys, layers, kind)
    experts = _experts(keys, layers)
    return Architecture(
        hidden=hidden,
        layers=layers,
        vocabulary=keys.whole("vocab_size"),
        intermediate=_intermediate(keys, hidden, layers, experts),
        matrices=2 if kind.startswith(_UNGATED) and not kind.startswith(_GATED_NEVERTHELESS) else 3,
        tied=bool(mapping.get("tie_word_embeddings", keys.plain.get("tie_word_embeddings", _tied(kind)))),
        attention=_attention(keys, hidden),
        kv_layers=cached.full,
        window_layers=cached.windows,
        window_tokens=cached.window_tokens,
        experts=experts,
        bits=bits_of(keys),
        context_tokens=keys.whole(*_POSITIONS, default=_POSITIONS_UNSAID, least=2),
    )


def _language_model(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _NESTED:
        if isinstance(nested := mapping.get(name), Mapping):
            outer = {key: value for key, value in mapping.items() if key in ("quantization_config",)}
            return {**outer, **nested}
    return mapping


def _with_unsaid(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add what the file leaves out as the default of its `model_type`."""
    kind = mapping.get("model_type")
    unsaid: Mapping[str, int] = _UNSAID.get(kind.lower(), {}) if isinstance(kind, str) else {}
    left_out = {key: value for key, value in unsaid.items() if mapping.get(key) is None}
    return {**mapping, **left_out}


def _kind(keys: Keys) -> str:
    return str(keys.plain.get("model_type") or "").lower()


def _tied(kind: str) -> bool:
    return kind.startswith(_TIED)


def _attention(keys: Keys, hidden: int) -> Attention:
    heads = keys.whole(*_HEADS)
    if keys.get("kv_lora_rank") is not None:
        q_rank = keys.get("q_lora_rank")
        return LatentAttention(
            heads=heads,
            q_rank=None if q_rank is None else keys.whole("q_lora_rank"),
            kv_rank=keys.whole("kv_lora_rank"),
            rope_dim=keys.whole("qk_rope_head_dim"),
            nope_dim=keys.whole("qk_nope_head_dim"),
            v_dim=keys.whole("v_head_dim"),
        )
    kv_heads = 1 if keys.get("multi_query") is True else heads
    kv_heads = keys.whole("num_key_value_heads", "num_kv_heads", "n_head_kv", default=kv_heads)
    if heads % kv_heads:
        raise InvalidValueError(keys.path("num_key_value_heads"), kv_heads, f"a divisor of the {heads} heads")
    return GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=_head_dim(keys, hidden, heads))


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    if keys.get("head_dim") is None and hidden % heads:
        expected = f"a multiple of the {heads} heads, since there is no head_dim"
        raise InvalidValueError(keys.path("hidden_size"), hidden, expected)
    return keys.whole("head_dim", default=max(1, hidden // heads))


def _intermediate(keys: Keys, hidden: int, layers: int, experts: Experts | None) -> int:
    """Return the inner width of layers without experts; `intermediate_size_mlp` is that of Llama 4."""
    names = ("intermediate_size_mlp", "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
    if experts is not None and experts.layers == layers:
        return keys.whole(*names, default=experts.intermediate, least=0)
    if _kind(keys).startswith(("falcon", "gpt2", "bloom", "gpt_bigcode", "gptj")):
        return keys.whole(*names, default=4 * hidden)
    return keys.whole("intermediate_size", *names[2:]) if names[0] not in keys.plain else keys.whole(*names)


def _experts(keys: Keys, layers: int) -> Experts | None:
    count = keys.whole(*_EXPERTS, default=0, least=0)
    if count < 2:
        return None
    per_token = keys.whole(*_PER_TOKEN)
    if per_token > count:
        name = next(name for name in _PER_TOKEN if keys.get(name) is not None)
        raise InvalidValueError(keys.path(name), per_token, f"at most the {count} experts")
    width = keys.whole("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    with_experts = _layers_with_experts(keys, layers)
    if with_experts == 0:
        return None
    return Experts(
        layers=with_experts,
        count=count,
        per_token=per_token,
        intermediate=width,
        shared_intermediate=_shared(keys, width),
    )


def _shared(keys: Keys, width: int) -> int:
    """Return the inner width of shared experts; Llama 4 has one without saying so."""
    default = 1 if _kind(keys).startswith("llama4") else 0
    number = keys.whole(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=default, least=0
    )
    names = ("shared_expert_intermediate_size", "shared_intermediate_size")
    return keys.whole(*names, default=number * width, least=0)


def _layers_with_experts(keys: Keys, layers: int) -> int:
    """Return the number of layers with experts: not the first few, not those listed, every n-th."""
    first = keys.whole("first_k_dense_replace", "moe_layer_start_index", default=0, least=0)
    listed = keys.get("mlp_only_layers")
    plain = listed if isinstance(listed, list) else []
    pattern = keys.get("moe_layer_freq")
    if isinstance(pattern, list):  # one entry per layer, 0 or 1
        return sum(bool(each) for each in pattern[:layers])
    step = keys.whole("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", default=1)
    return sum(i >= first and i not in plain and (i + 1) % step == 0 for i in range(layers))
