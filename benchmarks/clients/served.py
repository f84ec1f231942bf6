"""Servers of `make clients`: emulated engines, or a real vLLM."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from support.flaky import wait_until
from support.qlm_process import emulated
from support.vllm_cpu import VllmOptions, VllmServer, tiny_model

Models = tuple[str, str]
"""The model that suites use, and another one where they want a second."""

_EMULATED: Final = ("mistral-7b", "llama-3-8b")
_TINY: Final = "tiny"
_AGENTS_CONTEXT: Final = 131_072
"""Prompts of coding agents have 80 KB, and a token of an emulated model is a byte."""

READY_S: Final = 400.0
"""Longest start; that of a vLLM on a busy CPU takes minutes."""

_WEATHER: Final = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@contextlib.contextmanager
def emulated_models() -> Iterator[tuple[dict[str, Any], Models]]:
    """Give the configuration of two emulated models, each on an A100."""
    lengths = (8192, _AGENTS_CONTEXT)
    models = [{"id": each, "context_tokens": tokens} for each, tokens in zip(_EMULATED, lengths, strict=True)]
    instances = [{"id": each, "accelerator": "A100", "models": [each]} for each in _EMULATED]
    yield {**emulated(*_EMULATED), "models": models, "instances": instances}, _EMULATED


@contextlib.contextmanager
def tiny_vllm() -> Iterator[tuple[dict[str, Any], Models]]:
    """Run a vLLM on the CPU with a tiny model that calls tools; give the configuration with it.

    Its own render routes are the render tier: a second process would start as slowly as the first.
    """
    # The model keeps to the schema of a tool only if the grammar makes it (the strict level).
    parsers = [
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        "--tool-strict-level",
        "parameter",
    ]
    path = tiny_model(kind="talks")
    options = VllmOptions(
        model=path, max_model_len=_AGENTS_CONTEXT, kv_cache_bytes=256 * 2**20, extra_args=tuple(parsers)
    )
    with tempfile.TemporaryDirectory(prefix="qlm-vllm-") as folder:
        server = VllmServer(Path(folder), options)
        try:
            server.start(timeout_s=READY_S)
            render = {"url": server.base_url}
            model = {"id": _TINY, "engine": "vllm", "path": str(path), "context_tokens": _AGENTS_CONTEXT}
            instance = {"id": "cpu-0", "accelerator": "CPU", "models": [_TINY], "url": server.base_url}
            config = {"models": [{**model, "render": render}], "instances": [{**instance, "seqs_max": 8}]}
            yield config, (_TINY, _TINY)
        finally:
            server.kill()


def wait_for_tools(url: str, model: str, *, timeout_s: float) -> None:
    """Wait until the render tier of a model serves; until then, requests that need it are answered by 503."""
    talk = [{"role": "user", "content": "Hi"}]
    body = {"model": model, "messages": talk, "tools": [_WEATHER], "max_tokens": 1}

    def answered() -> bool:
        return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200

    wait_until(answered, f"the render tier of {model} serves", timeout_s)
