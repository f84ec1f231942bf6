"""The generation_config.json of a model: sampling defaults and tokens that end an answer, as vLLM reads it.

Source: vLLM 0.32, `ModelConfig.get_diff_sampling_param` and `get_max_tokens`. A model without the file has
these settings in its config.json, if at all.
"""

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ModelSpec
from qlm.gateway.core.sampling_defaults import DEFAULTED, VLLM_DEFAULTS, SamplingDefaults
from qlm.gateway.tokenizers.json_file import read_object

FILE: Final = "generation_config.json"


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None


def read_generation_config(folder: Path, source: str = "auto") -> dict[str, Any]:
    """Return the generation settings of the model in `folder`.

    Args:
        folder: The model's.
        source: `auto` or `vllm` for those of the model, else the folder with its generation_config.json.

    Raises:
        InvalidValueError: A file is not a JSON object.
    """
    if source in ("auto", "vllm"):
        return read_object(folder / FILE) or read_object(folder / "config.json")
    return read_object(Path(source) / FILE)


def sampling_defaults(spec: ModelSpec) -> SamplingDefaults:
    """Return the sampling defaults of a model.

    Raises:
        InvalidValueError: Its file has a value that no request may have.
    """
    if spec.tokenizer == "byte" or spec.generation_config == "vllm":
        return VLLM_DEFAULTS
    source = spec.generation_config
    folder = Path(spec.tokenizer)
    fields = _checked(read_generation_config(folder, source), folder if source == "auto" else Path(source))
    own = {name: value for name in DEFAULTED if (value := getattr(fields, name)) is not None}
    # The model's own file is a default; a file that the operator names also bounds what clients ask for.
    bound = None if source == "auto" else fields.max_new_tokens
    return SamplingDefaults(**own, max_tokens=fields.max_new_tokens, output_tokens_max=bound)


def _checked(settings: dict[str, Any], folder: Path) -> _Fields:
    try:
        return _Fields.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, expected = str(first["loc"][0]), first["msg"].removeprefix("Input should be ")
        raise InvalidValueError(f"{folder / FILE}: {name}", first["input"], expected) from error
