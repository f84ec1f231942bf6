"""Sizes of published models, computed from their configuration."""

import json
from typing import Any

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.roofline.architecture import Architecture
from qlm.rct_estimator.roofline.config_json import parse_config, parse_config_text
from support.model_configs import CONFIGS


def architecture(name: str, **changes: Any) -> Architecture:
    return parse_config(CONFIGS[name] | changes, "config.json")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.74),
        ("vicuna-13b", 13.02),
        ("llama-2-70b", 68.98),
        ("llama-3-8b", 8.03),
        ("llama-3.2-1b", 1.236),
        ("mistral-7b", 7.242),
        ("qwen2.5-7b", 7.616),
        ("gemma-2-9b", 9.242),
        ("gemma-3-4b", 3.88),
        ("gemma-3-12b", 11.766),
        ("gpt2-xl", 1.558),
        ("gpt-j-6b", 6.05),
        ("smollm3-3b", 3.075),
        ("opt-13b", 12.85),
        ("internlm-20b", 20.1),
        ("mixtral-8x7b", 46.7),
        ("qwen3-30b-a3b", 30.53),
        ("deepseek-v3", 671.0),
        ("gpt-oss-20b", 20.91),
        ("llama-4-maverick", 400.7),
    ],
)
def test_parameters_are_those_published_within_one_per_cent(name: str, billions: float) -> None:
    assert architecture(name).parameters == pytest.approx(billions * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "billions", "counts_input_embedding"),
    [
        ("mixtral-8x7b", 12.9, True),
        ("qwen3-30b-a3b", 3.35, True),
        ("deepseek-v3", 36.7, False),
        ("gpt-oss-20b", 3.61, False),
        ("llama-4-maverick", 17.17, True),
    ],
)
def test_active_parameters_are_those_published(
    name: str, billions: float, counts_input_embedding: bool
) -> None:
    model = architecture(name)
    looked_up = model.embedding_parameters if counts_input_embedding else 0
    assert model.active_parameters + looked_up == pytest.approx(billions * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("llama-2-7b", 524288),
        ("vicuna-13b", 819200),
        ("llama-2-70b", 327680),
        ("llama-3-8b", 131072),
        ("mistral-7b", 131072),
        ("internlm-20b", 1228800),
        ("qwen2.5-7b", 57344),
        ("mixtral-8x7b", 131072),
        ("qwen3-30b-a3b", 98304),
        ("deepseek-v3", 70272),
    ],
)
def test_kv_bytes_are_exact(name: str, kv_bytes: int) -> None:
    assert architecture(name).kv_bytes_per_token() == kv_bytes


def test_kv_is_kept_twice_where_gpus_outnumber_its_heads() -> None:
    model = architecture("llama-3-8b")
    assert [model.kv_bytes_per_token(n) for n in (1, 2, 8, 16)] == [131072, 131072, 131072, 262144]
    latent = architecture("deepseek-v3")
    assert latent.kv_bytes_per_token(8) == 8 * 70272, "every GPU keeps the latent vectors"


def test_layers_with_a_window_count_by_the_share_they_keep() -> None:
    half = 12 * 2 * 8 * 64 * 2
    assert architecture("gpt-oss-20b").kv_bytes_per_token() == round(half * (1 + 128 / 2000))
    assert architecture("gemma-2-9b").kv_bytes_per_token() == 42 * 2 * 8 * 256 * 2, "4096 tokens are enough"


def test_what_gemma_3_leaves_out_is_as_in_its_class() -> None:
    """Its published files have only what differs from the defaults of the transformers library."""
    model = architecture("gemma-3-4b")
    full, windows = 5, 29
    assert (model.kv_layers, model.window_layers, model.window_tokens) == (full, windows, 1024)
    assert model.kv_bytes_per_token() == round((full + windows * 1024 / 2000) * 2 * 4 * 256 * 2)
    assert model.context_tokens == 131072
    assert architecture("gemma-3-12b").attention.kv_values == 2 * 8 * 256, "not a share of the width"


def test_letters_name_layers_with_a_window_and_the_last_has_none() -> None:
    letters = {"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG"}
    model = architecture("llama-3-8b", **letters, num_hidden_layers=30)
    assert (model.kv_layers, model.window_layers) == (7 + 1, 22)


@pytest.mark.parametrize("kind", ["ernie4_5", "ernie4_5_moe", "minicpm3", "smollm3", "starcoder2"])
def test_embeddings_are_tied_where_the_class_says_so_and_the_file_nothing(kind: str) -> None:
    config = CONFIGS["smollm3-3b"] | {"model_type": kind}
    assert parse_config(config, "config.json").tied
    assert not parse_config(config | {"tie_word_embeddings": False}, "config.json").tied


def test_the_smallest_window_still_takes_a_byte() -> None:
    small = {"num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 1, "sliding_window": 1}
    assert architecture("llama-3-8b", **small).kv_bytes_per_token() == 1


def test_layers_named_one_by_one_or_by_an_interval_count_as_attention() -> None:
    full = architecture("llama-3-8b")
    assert architecture("llama-3-8b", layer_types=["full_attention"] * 32) == full
    assert architecture("llama-3-8b", full_attention_interval=1) == full


@pytest.mark.parametrize(
    "change", [{}, {"layer_types": ["sliding_attention"] * 32}, {"sliding_window_pattern": 2}]
)
def test_a_window_of_0_is_none(change: dict[str, Any]) -> None:
    model = architecture("llama-3-8b", sliding_window=0, **change)
    assert model.kv_bytes_per_token() == 131072


@pytest.mark.parametrize(
    ("name", "quantization", "gigabytes"),
    [
        ("gpt-oss-20b", CONFIGS["gpt-oss-20b"]["quantization_config"], 13.76),
        ("deepseek-v3", CONFIGS["deepseek-v3"]["quantization_config"], 673.0),
        ("llama-2-70b", {"quant_method": "awq", "bits": 4, "group_size": 128}, 36.6),
        ("llama-2-70b", {"quant_method": "gptq", "bits": 4, "group_size": 128}, 36.6),
        ("llama-2-70b", {"quant_method": "gptq", "bits": 4, "group_size": -1}, 35.3),
        ("llama-3-8b", {"quant_method": "bitsandbytes", "load_in_4bit": True}, 6.03),
        (
            "llama-3-8b",
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "float"},
                        "input_activations": {"num_bits": 8},
                    }
                },
            },
            9.08,
        ),
        ("llama-3-8b", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, 6.03),
    ],
)
def test_bytes_of_quantized_weights(name: str, quantization: dict[str, Any], gigabytes: float) -> None:
    model = architecture(name, quantization_config=quantization)
    assert model.weights_bytes == pytest.approx(gigabytes * 1e9, rel=0.015)


COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
FLOATS_8 = {"num_bits": 8, "type": "float", "dynamic": False}


@pytest.mark.parametrize(
    ("quantization", "kv_bytes"),
    [
        (COMPRESSED, 131072),
        (COMPRESSED | {"kv_cache_scheme": None}, 131072),
        (COMPRESSED | {"kv_cache_scheme": FLOATS_8}, 65536),
        (MODELOPT, 131072),
        (MODELOPT | {"kv_cache_quant_algo": "FP8"}, 65536),
        (MODELOPT | {"kv_cache_quant_algo": "INT8"}, 131072),
        (MODELOPT | {"kv_cache_scheme": FLOATS_8}, 65536),
        (MODELOPT | {"kv_cache_scheme": FLOATS_8 | {"dynamic": True}}, 131072),
        (MODELOPT | {"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, 36864),
        (MODELOPT | {"quantization": {"kv_cache_quant_algo": "NVFP4"}}, 36864),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "kv_cache_quant_algo": "fp8"}, 65536),
        ({"quant_method": "fp8", "kv_cache_scheme": FLOATS_8}, 131072),
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, 131072),
    ],
)
def test_kv_takes_the_bytes_that_vllm_keeps_for_the_checkpoint(
    quantization: dict[str, Any], kv_bytes: int
) -> None:
    assert architecture("llama-3-8b", quantization_config=quantization).kv_bytes_per_token() == kv_bytes


def test_experts_are_read_as_tokens_touch_them() -> None:
    model = architecture("qwen3-30b-a3b")
    assert model.bytes_read(1) == pytest.approx(2 * model.active_parameters)
    assert model.bytes_read(4096) == pytest.approx(
        2 * (model.parameters - model.embedding_parameters), rel=1e-6
    )
    reads = [model.bytes_read(1 << power) for power in range(12)]
    assert reads == sorted(reads)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "config.json: num_hidden_layers is None; expected a whole number"),
        ({"hidden_size": "big"}, "config.json: hidden_size is 'big'; expected a whole number of at least 1"),
        ({"vocab_size": 0}, "config.json: vocab_size is 0"),
        (
            {"vocab_size": 1 << 40},
            "config.json: vocab_size is 1099511627776; expected a whole number of at most 1099511627775",
        ),
        ({"vocab_size": True}, "config.json: vocab_size is True"),
        ({"vocab_size": 32000.5}, r"config.json: vocab_size is 32000\.5"),
        ({"num_key_value_heads": 5}, "config.json: num_key_value_heads is 5; expected a divisor of the 32"),
        ({"hidden_size": 4097}, "config.json: hidden_size is 4097; expected a multiple of the 32 heads"),
        ({"layer_types": 3}, "config.json: layer_types is 3; expected a list of texts"),
        (
            {"layer_types": ["full_attention"] * 2},
            r"config.json: layer_types is \['full_attention', 'full_attention'\]; expected one name for each",
        ),
        ({"layer_types": ["mamba"]}, r"config.json: layer_types is \['mamba'\]; expected one name for each"),
        (
            {"layer_types": ["mamba", "conv"] * 16},
            "config.json: layer_types is '32 of 32 conv, mamba'; expected layers with attention only",
        ),
        (
            {"full_attention_interval": 4},
            "config.json: layer_types is '24 of 32 linear_attention'; expected layers with attention only",
        ),
        (
            {"model_type": "qwen3_next"},
            "config.json: layer_types is '24 of 32 linear_attention'; expected layers with attention only",
        ),
        ({"full_attention_interval": "4"}, "config.json: full_attention_interval is '4'; expected a whole"),
        ({"quantization_config": 4}, "config.json: quantization_config is 4; expected a mapping"),
        (
            {"quantization_config": {"quant_method": "aqlm"}},
            "config.json: quantization_config.quant_method is 'aqlm'; expected one of fp8",
        ),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "config.json: quantization_config.bits is None; expected a whole number",
        ),
        *(
            (
                {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": size}},
                f"config.json: quantization_config.group_size is {size!r}; expected a whole number",
            )
            for size in ("128", -5, 0, 12.5, True)
        ),
        (
            {"quantization_config": COMPRESSED | {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}},
            r"config.json: quantization_config.kv_cache_scheme is \{'num_bits': 8, 'type': 'int'\}; expected",
        ),
        (
            {"num_local_experts": 8, "num_experts_per_tok": 9},
            "config.json: num_experts_per_tok is 9; expected at most the 8 experts",
        ),
        ({"num_local_experts": 8}, "config.json: num_experts_per_tok is None"),
    ],
)
def test_a_bad_key_is_named_with_its_file(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{message}"):
        architecture("llama-3-8b", **change)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-"}, "hybrid_override_pattern"),
        ({"model_type": "jamba", "attn_layer_period": 8, "mamba_d_state": 16}, "attn_layer_period"),
        ({"model_type": "bamba", "attn_layer_indices": [9, 18, 27]}, "attn_layer_indices"),
        ({"model_type": "falcon_h1", "mamba_d_ssm": 1536}, "model_type"),
        ({"model_type": "minimax_text_01", "attn_type_list": [0] * 31 + [1]}, "attn_type_list"),
        (
            {"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": [1, 2, 3]}},
            "linear_attn_config",
        ),
        ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "attention"]}, "block_types"),
        (
            {"model_type": "zamba2", "layers_block_type": ["mamba"] * 20 + ["hybrid"] * 12},
            "layers_block_type",
        ),
        ({"model_type": "lfm2", "full_attn_idxs": [2, 5, 8]}, "full_attn_idxs"),
        ({"model_type": "lfm2_moe", "layer_types": ["conv", "full_attention"] * 16}, "layer_types"),
        ({"model_type": "mamba2", "state_size": 128, "num_attention_heads": None}, "model_type"),
        ({"model_type": "new", "mamba_d_state": 16, "num_local_experts": 16}, "mamba_d_state"),
        ({"model_type": "new", "ssm_cfg": {"layer": "Mamba2"}}, "ssm_cfg"),
    ],
    ids=lambda given: given["model_type"] if isinstance(given, dict) else given,
)
def test_layers_of_others_than_attention_are_refused_by_the_key_that_says_so(
    change: dict[str, Any], key: str
) -> None:
    with pytest.raises(
        InvalidValueError, match=rf"^config\.json: {key} is .*; expected layers with attention"
    ):
        architecture("llama-3-8b", **change)


@pytest.mark.parametrize(
    "change",
    [
        {"attn_type_list": [1] * 32},  # as MiniMax-M2 has it
        {"layer_types": ["attention"] * 32, "mamba_d_state": 256},  # as Granite 4.0 Micro
        {"layers_block_type": ["attention"] * 32, "mamba_d_state": 16},
        {"block_types": ["attention"]},
        {"attn_layer_indices": list(range(32))},
        {"full_attn_idxs": list(range(32))},
        {"attn_layer_period": 1},
        {"linear_attn_config": {"kda_layers": []}},
        {"linear_attn_config": None, "mamba_d_state": None},
    ],
    ids=str,
)
def test_keys_of_hybrid_models_that_say_attention_only_change_nothing(change: dict[str, Any]) -> None:
    assert architecture("llama-3-8b", **change) == architecture("llama-3-8b")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"model"', "[" * 300_000])
def test_what_is_no_configuration_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"^here/config\.json is .*expected .*JSON") as refused:
        parse_config_text(text, "here/config.json")
    assert "\n" not in str(refused.value)


def test_a_config_in_the_file_is_read_as_its_mapping() -> None:
    text = json.dumps(CONFIGS["mixtral-8x7b"])
    assert parse_config_text(text, "config.json") == architecture("mixtral-8x7b")
