"""The reasoning parser of a render tier reaches the engines of its model, and only those."""

from pathlib import Path
from typing import Any

import pytest

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config, parse_config
from qlm.cli.runtime.engines import model_host
from qlm.cli.runtime.wiring import load_profiles
from qlm.domain.ids import ModelId

TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
URL = "http://127.0.0.1:9"
PRINTS_ITS_ARGUMENTS = '#!/bin/sh\necho "vllm $*"\nexit 3\n'


def config(render: dict[str, Any], folder: Path) -> Config:
    real = {"engine": "vllm", "path": str(folder)}
    raw = {
        "data_dir": str(folder / "data"),
        "models": [{"id": "a", **real, "render": render}, {"id": "b", **real}],
        "instances": [{"id": "i", "accelerator": "A100", "models": ["a", "b"]}],
        "vllm": {"python": str(folder / "python"), "extra_args": ["--seed", "0"]},
    }
    return parse_config(raw, "test")


async def command_line(made: Config, model: str) -> str:
    """Return the command line with which an engine of a model is started."""
    program = made.vllm.python.with_name("vllm")
    program.write_text(PRINTS_ITS_ARGUMENTS)
    program.chmod(0o755)
    host = model_host(made, made.instances[0], load_profiles(()))
    changed = await host.swap(ModelId(model))
    await host.close()
    assert changed.error is not None
    return next(line for line in changed.error.splitlines() if line.startswith("vllm serve"))


@pytest.mark.parametrize(
    ("render", "shared"),
    [
        ({"extra_args": [*TOOLS, "--reasoning-parser", "qwen3"]}, "--reasoning-parser qwen3"),
        ({"extra_args": ["--reasoning-parser=qwen3", *TOOLS]}, "--reasoning-parser=qwen3"),
        (
            {"extra_args": ["--reasoning_parser", "x", "--reasoning-parser-plugin", "/p.py"]},
            "--reasoning_parser x --reasoning-parser-plugin /p.py",
        ),
        ({"extra_args": TOOLS}, ""),
        ({"url": URL, "reasoning_parser": "qwen3"}, "--reasoning-parser qwen3"),
        ({"url": URL}, ""),
    ],
)
async def test_engines_get_the_reasoning_parser_of_the_render_tier(
    tmp_path: Path, render: dict[str, Any], shared: str
) -> None:
    words = await command_line(config(render, tmp_path), "a")
    assert words.endswith(f"--seed 0 {shared}".strip())


async def test_engines_of_other_models_do_not(tmp_path: Path) -> None:
    made = config({"extra_args": ["--reasoning-parser", "qwen3"]}, tmp_path)
    assert (await command_line(made, "b")).endswith("--seed 0")


def test_the_parser_of_a_tier_that_is_started_belongs_into_its_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'qwen3' and no url; expected --reasoning-parser in extra_args"):
        config({"reasoning_parser": "qwen3"}, tmp_path)
