"""`qlm serve` with webhooks: neither its engines nor its render tiers get the secrets of their endpoints."""

import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from support.gateway import until
from support.ports import free_port
from support.qlm_process import QlmProcess
from support.webhooks import SECRET

PROGRAM = f"""#!{sys.executable}
import json, os, pathlib, sys

made = pathlib.Path(sys.argv[0]).parent / (sys.argv[1] + ".part")
made.write_text(json.dumps(dict(os.environ)))
made.rename(made.with_suffix(".json"))
"""
"""Plays vLLM: writes its environment down, and ends."""


MEANT = {"HF_TOKEN", "HTTPS_PROXY", "AWS_PROFILE"}
"""What engines may need to get their weights."""


async def test_no_engine_gets_the_secret_of_a_webhook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {"REPORTS_SECRET"} | MEANT:
        monkeypatch.setenv(name, SECRET)
    (tmp_path / "vllm").write_text(PROGRAM)
    (tmp_path / "vllm").chmod(0o755)
    Tokenizer(WordLevel({"x": 0}, "x")).save(str(tmp_path / "tokenizer.json"))
    hook = {"name": "reports", "url": "https://reports.example/", "secret_env": "REPORTS_SECRET"}
    config = {
        "http": {"port": free_port()},
        "data_dir": str(tmp_path / "data"),
        "models": [{"id": "a", "engine": "vllm", "path": str(tmp_path), "context_tokens": 64, "render": {}}],
        "instances": [{"id": "i", "accelerator": "A100", "models": ["a"]}],
        "vllm": {"python": str(tmp_path / "python")},
        "webhooks": {"endpoints": [hook]},
    }
    process = QlmProcess("serve", "serve", config=config, folder=tmp_path)
    process.start()
    try:
        written = [tmp_path / "serve.json", tmp_path / "launch.json"]
        await until(lambda: all(file.exists() for file in written))
    finally:
        process.close()
    for file in written:
        environment = json.loads(file.read_text())
        assert environment.keys() >= MEANT
        assert "REPORTS_SECRET" not in environment
