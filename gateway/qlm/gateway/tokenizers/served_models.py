"""The models that a gateway serves, each with its tokenizer."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from qlm.domain.fleet import ModelSpec
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.core.tokenizer import ServedModel, Tokenizer
from qlm.gateway.tokenizers.byte import ByteTokenizer
from qlm.gateway.tokenizers.generation_config import sampling_defaults
from qlm.gateway.tokenizers.hf import HfTokenizer


class ServedModels:
    """The models that clients may name, in the order of the configuration."""

    def __init__(self, specs: Sequence[ModelSpec]) -> None:
        """Load their tokenizers and sampling defaults.

        Raises:
            InvalidValueError: A tokenizer or a generation_config.json cannot be read.
        """
        self._by_name: dict[str, ServedModel] = {
            spec.id: ServedModel(spec, load_tokenizer(spec), sampling_defaults(spec)) for spec in specs
        }

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def chosen(self, name: str | None) -> ServedModel:
        """Return the model of a request, which need not name it if there is only one.

        Raises:
            ApiError: It is not served here, or not named among several.
        """
        if name is not None:
            return self.named(name)
        if len(self._by_name) == 1:
            return next(iter(self))
        message = f"model is missing; expected one of {', '.join(self._by_name)}"
        raise invalid("model", message, "missing_required_parameter")

    def named(self, name: str) -> ServedModel:
        """Return a model.

        Raises:
            ApiError: It is not served here.
        """
        if (served := self._by_name.get(name)) is None:
            message = f"model is {shown(name)}; expected one of {', '.join(self._by_name)}"
            raise ApiError(status=404, message=message, param="model", code="model_not_found")
        return served


def load_tokenizer(spec: ModelSpec) -> Tokenizer:
    """Return a model's tokenizer.

    Raises:
        InvalidValueError: It cannot be read from its directory.
    """
    if spec.tokenizer == "byte":
        return ByteTokenizer()
    return HfTokenizer(Path(spec.tokenizer), generation_config=spec.generation_config)
