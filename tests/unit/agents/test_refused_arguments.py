"""Arguments of vLLM that are refused when the configuration is read."""

import re

import pytest

from qlm.agents.engines.refused_arguments import REFUSED, check_extra_args
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import parse_config


@pytest.mark.parametrize("flag", REFUSED)
@pytest.mark.parametrize("form", ["{}", "{}=x", "{}.x"])
def test_an_argument_without_effect_is_refused_by_name(flag: str, form: str) -> None:
    word = form.format(flag)
    with pytest.raises(ValueError, match=r"has .* in extra_args; expected ") as caught:
        check_extra_args(["--seed", "0", word])
    assert repr(word) in str(caught.value)
    with pytest.raises(ValueError, match="in extra_args"):
        check_extra_args(["--" + word[2:].replace("-", "_")])


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "0", "--enable-prefix-caching"],
        ["--hf-overrides", '{"rope_theta": 1}'],
        ["--served-model-name-of-mine", "--chat"],
        ["-tp", "2", "--speculative-config.method", "ngram"],
        ["--middleware", "chat-template"],
    ],
)
def test_other_arguments_are_passed_on(words: list[str]) -> None:
    check_extra_args(words)


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("--max-num-seqs=8", "the key seqs_max"),
        ("--max_model_len", "the key context_tokens of the model"),
        ("--max-num-batched-tokens", "the key batched_tokens_max"),
        ("--served-model-name", "the key id of the model"),
        ("--scheduler-cls", "the key batching of an instance"),
        ("--scheduling-policy=priority", "the key batching of an instance"),
        ("--port", "none: agents choose a free port"),
        ("--host", "none: agents call engines on loopback"),
        ("--tool-call-parser", "it in render.extra_args of the model"),
        ("--reasoning-parser=qwen3", "it in render.extra_args of the model"),
    ],
)
def test_the_error_names_what_to_use_instead(word: str, instead: str) -> None:
    with pytest.raises(ValueError, match=f"expected {instead}"):
        check_extra_args(["--seed", "0", word])


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("--max-num-seq", "--max-num-seqs"),
        ("--max_num_s=8", "--max-num-seqs"),
        ("--max-model", "--max-model-len"),
        ("--scheduler", "--scheduler-cls"),
        ("--served", "--served-model-name"),
    ],
)
def test_a_flag_that_vllm_completes_is_refused_like_the_whole_one(word: str, flag: str) -> None:
    expected = re.escape(f"has {word!r} (short for {flag}) in extra_args; expected {REFUSED[flag]}")
    with pytest.raises(ValueError, match=expected):
        check_extra_args(["--seed", "0", word])


@pytest.mark.parametrize("word", ["--", "--max-num", "--reasoning-p"])
def test_a_flag_that_may_be_short_for_several_is_left_to_vllm(word: str) -> None:
    check_extra_args([word])


def test_the_configuration_names_file_and_section() -> None:
    raw = {
        "models": [{"id": "m"}],
        "instances": [{"id": "a", "accelerator": "A100", "models": ["m"]}],
        "vllm": {"extra_args": ["--reasoning-parser", "qwen3"]},
    }
    with pytest.raises(ConfigError, match=r"qlm\.yaml: vllm has '--reasoning-parser' in extra_args"):
        parse_config(raw, "qlm.yaml")
