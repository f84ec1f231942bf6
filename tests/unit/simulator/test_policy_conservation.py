"""Nothing is created or lost in the engine model, whatever its batch policy decides."""

from hypothesis import settings
from hypothesis.stateful import invariant

from qlm.agents.batching.decision import BatchPolicy
from qlm.domain.ports.engine import CallObjective
from support.engine_life import EngineLife
from support.random_policy import RandomPolicy


class LifeUnderPolicy(EngineLife):
    """The same driver, with an engine whose batch policy decides by chance."""

    def policy(self, seed: int) -> BatchPolicy | None:
        return RandomPolicy(seed)

    def objective(self) -> CallObjective | None:
        kind = self.calls % 4
        if kind == 0:
            return None
        return CallObjective(
            arrival_ns=self.now_ns,
            ttft_s=0.01,
            tokens_per_s=(100.0, 0.0, float("inf"))[kind - 1],
            deadline_ns=self.now_ns + 10**9,
        )

    @invariant()
    def held_requests_keep_their_blocks(self) -> None:
        batch = self.engine._batch
        assert all(each in batch.running and each.blocks for each in batch.on_hold)
        assert batch.decodes.count + len(batch._prefilling) + len(batch.on_hold) <= len(batch.running)


TestLifeUnderPolicy = LifeUnderPolicy.TestCase
TestLifeUnderPolicy.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
