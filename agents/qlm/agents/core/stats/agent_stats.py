"""All measurements of one agent, together."""

from collections.abc import Mapping
from typing import Final

from qlm.agents.core.stats.concurrency import ConcurrencyLimit
from qlm.agents.core.stats.demotion_runs import DemotionRuns
from qlm.agents.core.stats.gpu_time import GpuTime
from qlm.agents.core.stats.operation_stats import OperationRecorder
from qlm.agents.core.stats.pace import NO_PACE, LeadTimes, Pace
from qlm.agents.core.stats.progress import ProgressWatch
from qlm.agents.core.stats.prompt_cache import PromptCache
from qlm.agents.core.stats.readers import ReaderBounds
from qlm.agents.core.stats.work_meter import WorkMeter
from qlm.domain.ids import ModelId
from qlm.rct_estimator.profiles.profile import Profile


class AgentStats:
    """Measurements of one agent.

    Attributes:
        work: Work of the awake engine since it woke.
        prompts: What prefix caches held of the latest prompts.
        operations: Counts and durations of serving operations.
        gpu_time: Account of the instance's time.
        paces: Recent speed of each model's engine, of models of which a generation has finished.
        lead_times: Time from start to what the objective is about, by class.
        demotion_runs: How long requests of each class have been too late.
        concurrency: The adaptive concurrency limit.
        readers: Batches that keep up with readers.
        progress: Progress of the awake engine, for the watchdog.
    """

    def __init__(self, gpu_time: GpuTime, profiles: Mapping[ModelId, Profile]) -> None:
        self.gpu_time: Final = gpu_time
        self.work = WorkMeter()
        self.prompts: Final = PromptCache()
        self.operations: Final = OperationRecorder()
        self.paces: Final[dict[ModelId, Pace]] = {}
        self.lead_times: Final = LeadTimes()
        self.demotion_runs: Final = DemotionRuns()
        self.concurrency: Final = ConcurrencyLimit()
        self.readers: Final = ReaderBounds(profiles)
        self.progress: Final = ProgressWatch()

    def pace_of(self, model: ModelId | None) -> Pace:
        """Return the recent speed of a model's engine."""
        return NO_PACE if model is None else self.paces.get(model, NO_PACE)

    def engine_woke(self, now_ns: int) -> None:
        """Start the measurements of another engine."""
        self.work = WorkMeter(now_ns)
        self.concurrency.reset(now_ns)
        self.progress.engine_woke(now_ns)
