"""GuideLLM: a short run over both routes, with its own check of the server first."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_requests_succeed_and_tokens_are_counted(url: str, model: str, tmp_path: Path, route: str) -> None:
    tokenizer = Path(os.environ["QLM_ROOT"]) / "build/tiny-model-0"
    argv = [str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console-interactive"]
    argv += ["--backend", f"kind=openai_http,target={url},model={model},request_format={route}"]
    argv += ["--tokenizer", f"kind=hf_auto,model={tokenizer}", "--profile", "kind=synchronous"]
    argv += ["--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=16"]
    argv += ["--constraint", "kind=max_requests,count=5", "--output", f"kind=json,path={tmp_path}/out.json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (benchmark,) = json.loads((tmp_path / "out.json").read_text("utf-8"))["benchmarks"]
    assert benchmark["metrics"]["request_totals"]["successful"] == 5
    assert benchmark["metrics"]["request_totals"]["errored"] == 0
