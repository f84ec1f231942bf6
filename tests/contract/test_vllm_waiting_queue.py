"""The waiting queue of QLM's scheduler, on that of a real vLLM."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from qlm.agents.engines.scheduler_path import scheduler_path
from support import vllm_cpu
from support.needs import need

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

PROGRAM: Final = """
from qlm.agents.vllm_scheduler.waiting_queue import GatedQueue

CHANGES = {
    "add_request": "d", "prepend_request": "d", "prepend_requests": ["d"], "remove_request": "b",
    "remove_requests": ["b"],
}
for name, argument in CHANGES.items():
    queue = GatedQueue("abc")
    assert not queue.untouched
    queue.arrange(["c"], ["a", "b"])
    assert queue.untouched and queue and queue.pop_request() == "c"
    assert queue.untouched and not queue and list(queue) == ["a", "b"]
    getattr(queue, name)(argument)
    assert not queue.untouched, name
    assert sorted(queue) == (["a"] if name.startswith("remove") else ["a", "b", "d"])
"""


def test_it_notices_whatever_vllm_does_to_it_but_admissions(tmp_path: Path) -> None:
    need(vllm_cpu.missing())
    ran = subprocess.run(
        [vllm_cpu.PYTHON, "-c", PROGRAM],
        env={"PYTHONPATH": str(scheduler_path(tmp_path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
