"""vLLM's own load generator, `vllm bench serve`, over both routes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROUTES = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


@pytest.mark.parametrize("backend", list(ROUTES))
def test_requests_succeed_and_tokens_are_counted(url: str, model: str, tmp_path: Path, backend: str) -> None:
    root = Path(os.environ["QLM_ROOT"])
    argv = [str(root / ".venv-vllm/bin/vllm"), "bench", "serve", "--backend", backend, "--base-url", url]
    argv += ["--endpoint", ROUTES[backend], "--model", model, "--tokenizer", str(root / "build/tiny-model-0")]
    argv += ["--dataset-name", "random", "--random-input-len", "20", "--random-output-len", "16"]
    argv += ["--num-prompts", "8", "--request-rate", "8", "--ignore-eos", "--save-result"]
    argv += [
        "--result-dir",
        str(tmp_path),
        "--result-filename",
        "result.json",
        "--percentile-metrics",
        "ttft",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (8, 0, 8 * 16)
    assert result["mean_ttft_ms"] > 0
