"""Which render tiers a gateway has, and how it starts one."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qlm.cli.config.default import vllm_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config, parse_config
from qlm.cli.main import main
from qlm.cli.rendering.tiers import render_command, render_tiers
from support.gateway import SystemClock

INSTANCE = {"id": "i", "accelerator": "A100", "models": ["a"]}
PARSERS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]


def config(*models: dict[str, Any]) -> Config:
    return parse_config({"models": list(models), "instances": [INSTANCE]}, "test")


async def test_emulated_models_have_one_and_others_only_if_configured() -> None:
    real = {"engine": "vllm", "path": "/models/x"}
    made = config(
        {"id": "a"},
        {"id": "b", **real},
        {"id": "c", **real, "render": {"url": "http://127.0.0.1:9"}},
    )
    async with render_tiers(made, SystemClock()) as tiers:
        assert set(tiers) == {"a", "c"}
        rendered = await tiers["a"].client.render(
            {"model": "a", "messages": [{"role": "user", "content": "Hi"}]}
        )
    assert bytes(rendered["token_ids"]) == b"user: Hi\nassistant:"


def test_a_url_and_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="extra_args"):
        config({"id": "a", "render": {"url": "http://127.0.0.1:9", "extra_args": PARSERS}})


def test_arguments_of_an_emulated_tier_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"models\.0 has the render\.extra_args .* its engine is emulated"):
        config({"id": "a", "render": {"extra_args": PARSERS}})


@pytest.mark.parametrize(
    ("args", "reasons"), [(PARSERS, False), (["--reasoning-parser=qwen3"], True), ([], False)]
)
def test_a_single_vllm_gets_its_render_tier_from_the_command_line(
    tmp_path: Path, args: list[str], reasons: bool
) -> None:
    made = vllm_config(
        tmp_path, tmp_path / "bin/python", cpu=True, pythonpath=None, overrides={}, render_args=args
    )
    (model,) = made.models
    assert model.render is not None
    assert model.render.reasons is reasons
    command = render_command(made, model, model.render, 7)
    assert command.argv[:4] == (str(tmp_path / "bin/vllm"), "launch", "render", str(tmp_path))
    assert command.argv[len(command.argv) - len(args) :] == tuple(args)
    assert command.argv[command.argv.index("--port") + 1] == "7"


def test_without_the_option_a_single_vllm_has_none(tmp_path: Path) -> None:
    made = vllm_config(tmp_path, Path("python"), cpu=True, pythonpath=None, overrides={})
    assert made.models[0].render is None


def test_an_unfinished_quotation_in_its_arguments_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", "--vllm", str(tmp_path), "--vllm-render", "--parser 'qwen3"])
    assert (result.exit_code, result.output) == (
        2,
        """qlm: --vllm-render is "--parser 'qwen3"; expected arguments as a shell reads them """
        "(no closing quotation)\n",
    )


@pytest.mark.parametrize("option", ["--vllm-render", "--vllm-python", "--vllm-pythonpath"])
def test_an_option_of_a_real_vllm_needs_one(option: str) -> None:
    result = CliRunner().invoke(main, ["serve", option, "value"])
    assert (result.exit_code, result.output) == (
        2,
        f"qlm: {option} is 'value' without --vllm; expected both\n",
    )
