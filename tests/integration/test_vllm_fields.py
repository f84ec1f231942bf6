"""The request fields that the reference lists are those of the installed vLLM."""

import json
import subprocess

import pytest

from scripts.reference_pages.request_fields import LISTED
from support.vllm_cpu import PYTHON, ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(200)]


def test_the_fields_are_those_of_the_installed_vllm() -> None:
    script = ROOT / "scripts/vllm_fields.py"
    run = subprocess.run([PYTHON, script], capture_output=True, text=True, check=True, cwd="/")
    assert json.loads(run.stdout) == LISTED, f"write {script.name} > scripts/reference_pages/vllm_fields.json"
