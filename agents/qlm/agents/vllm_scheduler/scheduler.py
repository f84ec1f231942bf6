"""vLLM's scheduler with a batch policy, exactly for vLLM 0.32.

It subclasses `AsyncScheduler`, which also schedules synchronously. All of it that is not a method of vLLM's
is behind one attribute, `_qlm`, so that no name can hide one of vLLM's.
"""

import os
import time
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request

from qlm.agents.vllm_scheduler.host import PolicyHost
from qlm.agents.vllm_scheduler.limits import check_engine
from qlm.agents.vllm_scheduler.settings import VARIABLE, SchedulerSettings
from qlm.agents.vllm_scheduler.waiting_queue import GatedQueue

logger = init_logger("vllm.qlm")


class QlmScheduler(AsyncScheduler):  # type: ignore[misc]  # vLLM's types are not here
    """Scheduler whose batch a policy of `qlm.agents.batching` decides.

    Times are of `time.monotonic`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_engine(self)
        settings = SchedulerSettings.parse(os.environ.get(VARIABLE, ""))
        self.waiting = GatedQueue()
        self._qlm = PolicyHost(self, settings, logger)
        logger.info("QLM's scheduler runs the batch policy %s", settings.batching)

    def add_request(self, request: Request) -> None:
        """Take a request, or the next input of a session."""
        known = request.request_id in self.requests
        super().add_request(request)
        if not (known or request.resumable or request.sampling_params is None):
            self._qlm.arrived(request, time.monotonic())

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Apply the policy, then let vLLM schedule."""
        began_s = time.monotonic()
        self._qlm.prepare(began_s, paused=self._pause_state != PauseState.UNPAUSED)
        self._qlm.counters.step(time.monotonic() - began_s)
        output = super().schedule(throttle_prefills)
        self._qlm.scheduled(output, began_s)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Let vLLM take the output, then deliver the tokens to their readers."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._qlm.computed(scheduler_output, outputs, time.monotonic())
        return outputs

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        self._qlm.ended(request, time.monotonic())
        return super()._free_request(request, delay_free_blocks)

    def shutdown(self) -> None:
        """Log the last counters and end."""
        self._qlm.log_counters()
        super().shutdown()
