"""Built-in configurations: emulated models on unequal accelerators, or one real vLLM."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qlm.cli.config.settings import Config, parse_config
from qlm.cli.starter.built_in import EMULATED


def emulated_config(overrides: dict[str, Any]) -> Config:
    """Configure three models on three emulated accelerators."""
    return parse_config(EMULATED | overrides, "the built-in configuration")


def vllm_config(
    model: Path,
    python: Path,
    *,
    cpu: bool,
    pythonpath: Path | None,
    overrides: dict[str, Any],
    render_args: Sequence[str] | None = None,
) -> Config:
    """Configure one real vLLM that serves the model in a directory; with `render_args`, a render tier."""
    name = model.name if model.name not in ("", "..") else model.resolve().name  # a link keeps its own
    render: dict[str, Any] = {}
    if render_args is not None:
        reasons = any(word.startswith("--reasoning-parser") for word in render_args)
        render = {"render": {"extra_args": list(render_args), "reasons": reasons}}
    vllm: dict[str, Any] = {"python": str(python), "cpu": cpu}
    if pythonpath is not None:
        vllm["pythonpath"] = str(pythonpath)
    if cpu:
        # Small, for machines with 4 GiB; float32 makes resumed answers identical token by token.
        vllm |= {"dtype": "float32", "block_tokens": 32, "kv_cache_bytes": 256 * 1024**2, "seqs_max": 8}
    raw = {
        "models": [
            {
                "id": name,
                "engine": "vllm",
                "path": str(model),
                "context_tokens": 2048 if cpu else 8192,
                **render,
            }
        ],
        "instances": [{"id": "vllm-0", "accelerator": "CPU" if cpu else "GPU", "models": [name]}],
        "vllm": vllm,
    }
    return parse_config(raw | overrides, "the built-in vLLM configuration")
