"""Bits per number of the KV cache that a quantized model asks for, by the rules of vLLM 0.32.

Other methods than the two here may name a KV cache as well (`"kv_cache_scheme": "static"` of AutoFP8); vLLM
keeps 16 bits for them unless `--kv-cache-dtype` says otherwise.
"""

from collections.abc import Mapping
from typing import Any, Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.roofline.keys import Keys

_PLAIN: Final = 16.0
_FLOATS_8: Final = 8.0
_NVFP4: Final = 4.5
"""4 bits, and 8 of scale for 16 numbers."""


def kv_bits(given: Keys, method: str) -> float:
    """Return the bits per number of the KV cache under `--kv-cache-dtype auto`.

    Args:
        given: `quantization_config` of the model's configuration.
        method: Its method of quantization, in lower case.

    Raises:
        InvalidValueError: vLLM does not start with such a KV cache.
    """
    if method == "compressed-tensors":
        return _compressed(given)
    return _modelopt(given) if method.startswith("modelopt") else _PLAIN


def _compressed(given: Keys) -> float:
    """Follow `CompressedTensorsKVCacheMethod.validate_kv_cache_scheme`."""
    if given.get("kv_cache_scheme") is None:
        return _PLAIN
    scheme = given.section("kv_cache_scheme").plain
    if (scheme.get("type"), scheme.get("num_bits")) != ("float", 8):
        raise InvalidValueError(given.path("kv_cache_scheme"), dict(scheme), "floats of 8 bits, as in vLLM")
    return _FLOATS_8


def _modelopt(given: Keys) -> float:
    """Follow `get_kv_cache_quant_algo_string`; what it does not know leaves 16 bits."""
    inner = given.get("quantization")
    places = (inner, given.plain) if isinstance(inner, Mapping) else (given.plain,)
    named = [place.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo") for place in places]
    algorithm: Any = next((each for each in named if each), None)
    if isinstance(algorithm, Mapping):
        algorithm = _named(algorithm)
    return {"fp8": _FLOATS_8, "nvfp4": _NVFP4}.get(str(algorithm).lower(), _PLAIN)


def _named(scheme: Mapping[str, Any]) -> str | None:
    kind = scheme.get("type"), scheme.get("num_bits")
    if kind == ("float", 8) and scheme.get("dynamic") is False:
        return "fp8"
    return "nvfp4" if kind == ("float", 4) else None
