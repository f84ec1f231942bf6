"""A model's own sampling defaults, as vLLM reads them."""

import json
from pathlib import Path
from typing import Any

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.sampling import Sampling
from qlm.gateway.api.schema import parse_chat, parse_completion
from qlm.gateway.api.translate import Arrival, to_metadata
from qlm.gateway.core.class_choice import ClassChoice
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.sampling_defaults import VLLM_DEFAULTS, SamplingDefaults
from qlm.gateway.core.tokenizer import ServedModel
from qlm.gateway.tokenizers.byte import ByteTokenizer
from qlm.gateway.tokenizers.generation_config import sampling_defaults

OWN = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.05}


def written(folder: Path, settings: Any, name: str = "generation_config.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(settings))
    return folder


def spec(folder: Path, source: str = "auto") -> ModelSpec:
    return ModelSpec(
        id=ModelId("m"), tokenizer=str(folder), context_tokens=100, generation_config=str(source)
    )


def sampling(defaults: SamplingDefaults, *, chat: bool = True, **fields: Any) -> Sampling:
    served = ServedModel(
        ModelSpec(id=ModelId("m"), tokenizer="byte", context_tokens=100), ByteTokenizer(), defaults
    )
    limits = GatewayLimits()
    if chat:
        body: Any = parse_chat({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields)
    else:
        body = parse_completion({"model": "m", "prompt": "hi"} | fields)
    arrival = Arrival(id=RequestId("r"), headers={}, now_ns=0)
    classes = ClassChoice(limits.slo_steps, limits.classes_max)
    return to_metadata(body, (1, 2), served, limits, arrival, classes).sampling


def test_what_a_request_does_not_name_is_the_models_own(tmp_path: Path) -> None:
    got = sampling(sampling_defaults(spec(written(tmp_path, OWN | {"max_new_tokens": 7}))))
    assert {name: getattr(got, name) for name in OWN} == OWN
    assert got.max_tokens == 7


def test_null_counts_as_not_named(tmp_path: Path) -> None:
    assert sampling(sampling_defaults(spec(written(tmp_path, OWN))), temperature=None).temperature == 0.6


def test_what_a_request_names_wins_even_at_the_value_that_changes_nothing(tmp_path: Path) -> None:
    neutral: dict[str, Any] = {"temperature": 1, "top_k": -1, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    defaults = sampling_defaults(spec(written(tmp_path, OWN | {"max_new_tokens": 7})))
    assert sampling(defaults, **neutral, max_tokens=9) == sampling(VLLM_DEFAULTS, max_tokens=9)


def test_max_new_tokens_is_the_default_of_chats_only(tmp_path: Path) -> None:
    # As in vLLM, whose completions have 16 tokens without a limit.
    defaults = sampling_defaults(spec(written(tmp_path, {"max_new_tokens": 7})))
    assert sampling(defaults, chat=False) == sampling(VLLM_DEFAULTS, chat=False)


def test_a_file_that_the_operator_names_bounds_every_answer(tmp_path: Path) -> None:
    written(tmp_path / "model", {"temperature": 0.6})
    source = written(tmp_path / "other", {"top_k": 3, "max_new_tokens": 7})
    defaults = sampling_defaults(spec(tmp_path / "model", str(source)))
    assert defaults == SamplingDefaults(top_k=3, max_tokens=7, output_tokens_max=7)
    for chat in (True, False):
        asked = [sampling(defaults, chat=chat, max_tokens=most).max_tokens for most in (3, 7, 8)]
        assert asked == [3, 7, 7]
        assert sampling(defaults, chat=chat).max_tokens == 7


def test_vllms_defaults_on_request(tmp_path: Path) -> None:
    assert sampling_defaults(spec(written(tmp_path, OWN), "vllm")) == VLLM_DEFAULTS


def test_a_model_without_the_file_has_the_settings_of_its_config(tmp_path: Path) -> None:
    folder = written(tmp_path, {"temperature": 0.7, "hidden_size": 8}, "config.json")
    assert sampling_defaults(spec(folder)) == SamplingDefaults(temperature=0.7)


def test_a_model_without_either_has_those_of_vllm(tmp_path: Path) -> None:
    assert sampling_defaults(spec(tmp_path)) == VLLM_DEFAULTS


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1}, "temperature is -1; expected greater than or equal to 0"),
        ({"top_p": 0}, "top_p is 0; expected greater than 0"),
        ({"top_k": "many"}, "top_k is 'many'; expected a valid integer"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; expected greater than or equal to 1"),
        ({"min_p": float("nan")}, "min_p is nan; expected a finite number"),
    ],
)
def test_a_senseless_value_is_refused_by_file_and_name(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        sampling_defaults(spec(written(tmp_path, wrong)))
    assert message in str(caught.value)
    assert "generation_config.json" in str(caught.value)
