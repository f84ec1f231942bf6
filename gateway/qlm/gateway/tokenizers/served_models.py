"""The models and adapters that a gateway serves, each with its tokenizer."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Final

import orjson

from qlm.domain.fleet import ModelSpec
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.core.tokenizer import ServedModel, Tokenizer
from qlm.gateway.tokenizers.byte import ByteTokenizer
from qlm.gateway.tokenizers.generation_config import sampling_defaults
from qlm.gateway.tokenizers.hf import HfTokenizer

MODEL_NOT_FOUND: Final = "model_not_found"
"""Code of the refusal of a request for a model that the configuration does not have."""

_SETTINGS_FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


class ServedModels:
    """The models that clients may name, in the order of the configuration, each before its adapters."""

    def __init__(self, specs: Sequence[ModelSpec]) -> None:
        """Load their tokenizers and sampling defaults.

        Raises:
            InvalidValueError: A tokenizer or a generation_config.json cannot be read.
        """
        self._by_name: dict[str, ServedModel] = {}
        for spec in specs:
            base = ServedModel(spec, load_tokenizer(spec), sampling_defaults(spec))
            self._by_name[spec.id] = base
            self._by_name |= {name: replace(base, adapter=name) for name in spec.adapters}
        self._only = next(iter(self)) if len(specs) == 1 else None
        self._fingerprints = {name: fingerprint(served) for name, served in self._by_name.items()}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def chosen(self, name: str | None) -> ServedModel:
        """Return the model of a request, which need not name it if there is only one beside its adapters.

        Raises:
            ApiError: It is not served here, or not named among several.
        """
        if name:  # as in vLLM, an empty one is none
            return self.named(name)
        if self._only is not None:
            return self._only
        message = f"model is missing; expected one of {', '.join(self._by_name)}"
        raise invalid("model", message, "missing_required_parameter")

    def named(self, name: str) -> ServedModel:
        """Return a model.

        Raises:
            ApiError: It is not served here.
        """
        if (served := self._by_name.get(name)) is None:
            message = f"model is {shown(name)}; expected one of {', '.join(self._by_name)}"
            raise ApiError(status=404, message=message, param="model", code=MODEL_NOT_FOUND)
        return served

    def fingerprint(self, name: str) -> str | None:
        """Return the fingerprint of a model; None if it is not served here."""
        return self._fingerprints.get(name)


def fingerprint(served: ServedModel) -> str:
    """Return a short text that changes with what decides a model's answers, as far as a gateway knows it."""
    spec = served.spec
    settings = [version("qlm-serving"), served.name, spec.context_tokens, asdict(served.defaults)]
    digest = blake2b(orjson.dumps(settings), digest_size=4)
    for name in _SETTINGS_FILES if spec.tokenizer != "byte" else ():
        file = Path(spec.tokenizer) / name
        digest.update(file.read_bytes() if file.is_file() else b"")
    return f"qlm-{digest.hexdigest()}"


def load_tokenizer(spec: ModelSpec) -> Tokenizer:
    """Return a model's tokenizer.

    Raises:
        InvalidValueError: It cannot be read from its directory.
    """
    if spec.tokenizer == "byte":
        return ByteTokenizer()
    return HfTokenizer(Path(spec.tokenizer), generation_config=spec.generation_config)
