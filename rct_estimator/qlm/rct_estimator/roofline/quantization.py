"""Bits per weight, from `quantization_config` of a model's configuration."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.roofline.architecture import Bits
from qlm.rct_estimator.roofline.keys import Keys
from qlm.rct_estimator.roofline.kv_quantization import kv_bits

_GROUP: Final = 128
"""Weights per scale where a file does not say."""
_SCALE_BITS: Final = 16

_FLOATS_8: Final = ("fp8", "fbgemm_fp8", "ptpc_fp8", "deepseek_v3_fp8")
_INTEGERS: Final = ("gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round")
_MICROSCALED_4: Final = 4.25
"""4 bits, and 8 of scale for 32 weights (MXFP4)."""
_NVFP4: Final = 4.5
"""4 bits, and 8 of scale for 16 weights."""
_METHODS: Final = (*_FLOATS_8, *_INTEGERS, "bitsandbytes", "compressed-tensors", "modelopt", "mxfp4")


def bits_of(keys: Keys) -> Bits:
    """Return the bits per weight of a model, and per number of its KV cache.

    Args:
        keys: The model's configuration.

    Raises:
        InvalidValueError: The method of quantization is not known, or vLLM has no such KV cache.
    """
    if keys.get("quantization_config") is None:
        return Bits()
    given = keys.section("quantization_config")
    method = str(given.get("quant_method") or given.get("quant_algo")).lower().removesuffix("_fp4")
    return replace(_weights(given, method), kv=kv_bits(given, method))


def _weights(given: Keys, method: str) -> Bits:
    if method == "mxfp4":
        return Bits(expert=_MICROSCALED_4)
    if method in _FLOATS_8:
        return _uniform(given, 8.0, floats=True)
    if method in _INTEGERS:
        return _uniform(given, _grouped(given, given.whole("bits", "w_bit")))
    if method == "bitsandbytes":
        return _uniform(given, 8.0 if given.get("load_in_8bit") else _NVFP4)
    if method == "compressed-tensors":
        return _compressed(given)
    if method == "modelopt":
        return _modelopt(given)
    raise InvalidValueError(given.path("quant_method"), method, f"one of {', '.join(_METHODS)}")


def _compressed(given: Keys) -> Bits:
    groups = given.section("config_groups")
    group = groups.section(next(iter(groups.plain), "group_0"))
    weights = group.section("weights")
    bits = weights.whole("num_bits")
    inputs = group.get("input_activations")
    floats = bits == 8 and weights.get("type") == "float" and inputs is not None
    return _uniform(given, _grouped(weights, bits) if bits < 8 else float(bits), floats=floats)


def _modelopt(given: Keys) -> Bits:
    algorithm = str(given.get("quant_algo")).upper()
    known = {"FP8": 8.0, "NVFP4": _NVFP4, "MXFP4": _MICROSCALED_4}
    if algorithm not in known:
        raise InvalidValueError(
            given.path("quant_algo"), given.get("quant_algo"), f"one of {', '.join(known)}"
        )
    return _uniform(given, known[algorithm], floats=algorithm == "FP8")


def _grouped(given: Keys, bits: int) -> float:
    """Return the bits per weight with a 16-bit scale and a zero point per group."""
    names = ("group_size", "q_group_size")
    if given.get(*names) == -1:  # one scale per row, which is nothing
        return float(bits)
    return bits + (_SCALE_BITS + bits) / given.whole(*names, default=_GROUP)


def _uniform(given: Keys, bits: float, *, floats: bool = False) -> Bits:
    kept = _kept(given.plain)
    attention = 16.0 if any("attn" in name for name in kept) else bits
    return Bits(attention=attention, linear=bits, expert=bits, eight_bit_floats=floats)


def _kept(plain: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of modules that keep 16 bits."""
    for key in ("modules_to_not_convert", "ignore", "exclude_modules"):
        if isinstance(plain.get(key), list):
            return tuple(str(name) for name in plain[key])
    return ()
