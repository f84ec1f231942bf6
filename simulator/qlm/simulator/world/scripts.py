"""How simulated engines know how long each answer is: from the workload, by the request's number."""

from collections.abc import Callable
from typing import Final

from qlm.domain.ports.engine import EngineCall
from qlm.simulator.engine.generation import PREFIX_TOKENS, Script
from qlm.simulator.scenario import Workload
from qlm.simulator.world.clients import request_number

_BLOCKS_MAX: Final = 1 << 24
"""Blocks of one text are numbered within so many: texts of different requests never look alike."""


def script_of(workload: Workload) -> Callable[[EngineCall], Script]:
    """Return what tells the rest of an answer, given the call that begins or resumes it."""
    prompts, outputs = workload.prompt_tokens.tolist(), workload.output_tokens.tolist()

    def script(call: EngineCall) -> Script:
        number = request_number(call.call_id)
        done = len(call.prompt_ids) - prompts[number]
        base = (number + 1) * _BLOCKS_MAX
        if not workload.prefixes:
            return Script(output_tokens=max(1, outputs[number] - done), base=base)
        prefix = workload.prefixes[number]
        shared = min(len(prefix) * PREFIX_TOKENS, prompts[number])
        return Script(
            output_tokens=max(1, outputs[number] - done), base=base, prefix_ids=prefix, prefix_tokens=shared
        )

    return script
