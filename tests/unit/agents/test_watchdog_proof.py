"""A suspect engine has to generate a token for a new request; one that is only busy never gets there."""

import random
from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import EngineChanged, EngineProbed, Progress
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.watchdog import Allowance, proof_s
from qlm.domain.actions import Abort, ProbeEngine, Pull, RestartEngine, Return
from qlm.domain.fleet import EngineState
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from support.agent_bench import Bench, M, group_of
from support.requests import a_request

CHECK_S = 0.5
GOAL_S = 30.0
SLOWNESS = 10.0
BUDGETS = (64, 512, 2048, 8192)
SHIPPED = "mistral-7b"
SPEED = EngineSpeed(iteration_s=0.2, batched_tokens_max=512)


def give(bench: Bench, *call_ids: str) -> None:
    bench.send(Progress(chunks=tuple((call_id, (5,)) for call_id in call_ids)))


def a_bench(speed: EngineSpeed = SPEED, seqs_max: int = 8) -> Bench:
    return Bench(
        seqs_max=seqs_max, kv_tokens=1 << 16, settings=AgentSettings(), costs=OperationCosts(speed={M: speed})
    )


def made_suspect(bench: Bench) -> tuple[str, float, float]:
    """Let one request wait while another goes on; return the other's call, the wait, the proof's time."""
    running = bench.start(a_request("running", model=M, max_tokens=4000), name="g-running").call.call_id
    give(bench, running)
    bench.start(a_request("waiting", model=M, max_tokens=9), name="g-waiting")
    began_ns = bench.now_ns
    while not (cut := [each for each in bench.take(Abort) if each.cut]):
        give(bench, running)
        bench.later(CHECK_S)
        assert bench.now_ns - began_ns < 60e9
    assert len(cut) == 1
    (probe,) = bench.take(ProbeEngine)
    return running, (bench.now_ns - began_ns) / 1e9, probe.token_s


def test_one_waiting_request_is_enough_to_put_an_engine_made_suspect() -> None:
    bench = a_bench()
    made_suspect(bench)
    bench.store_appends()
    assert [each.id for each in bench.take(Return)] == ["waiting"]
    status = bench.agent.status()
    assert (M, EngineState.FAILED) in status.engines, "plans avoid it"
    assert "waiting stood still" in status.error
    bench.queue(group_of(a_request("next", model=M)))
    assert not bench.take(Pull), "nobody else waits for it"


def test_an_engine_without_a_token_for_a_new_request_is_restarted_and_its_requests_move() -> None:
    bench = a_bench()
    made_suspect(bench)
    bench.send(EngineProbed(healthy=False, by_token=True))
    (restart,) = bench.take(RestartEngine)
    assert "for a new request" in restart.why
    bench.send(EngineChanged(model=M, state=EngineState.FAILED, error=restart.why))
    bench.store_appends()
    assert [each.id for each in bench.take(Return)] == ["waiting", "running"]


def test_an_engine_that_gives_its_token_goes_on_with_all_it_runs() -> None:
    bench = a_bench()
    running, _, _ = made_suspect(bench)
    bench.queue(group_of(a_request("next", model=M)))
    bench.send(EngineProbed(healthy=True, by_token=True))
    assert not bench.take(RestartEngine)
    assert not bench.agent.status().error
    assert (M, EngineState.AWAKE) in bench.agent.status().engines
    assert bench.take(Pull)
    give(bench, running)
    assert running in bench.agent.state.requests.calls


def test_health_alone_does_not_end_the_suspicion() -> None:
    bench = a_bench()
    made_suspect(bench)
    bench.send(EngineProbed(healthy=True))
    bench.queue(group_of(a_request("next", model=M)))
    assert not bench.take(Pull)
    bench.later(1.0)
    assert [each.token_s > 0 for each in bench.take(ProbeEngine)] == [True]


def test_an_answer_of_a_probe_of_the_engine_before_restarts_nothing() -> None:
    bench = a_bench()
    made_suspect(bench)
    bench.send(EngineChanged(model=M, state=EngineState.FAILED, error="killed"))
    bench.awake(M)
    bench.send(EngineProbed(healthy=False, by_token=True))
    assert not bench.take(RestartEngine)


@pytest.mark.parametrize("kind", ["A100", "H100"])
def test_a_request_that_waits_alone_returns_to_its_queue_well_within_the_goal(kind: str) -> None:
    profile = find_profile(builtin_profiles(), SHIPPED, kind, 1)
    _, waited_s, _ = made_suspect(a_bench(EngineSpeed.of(profile)))
    assert waited_s < 0.75 * GOAL_S


def test_a_prompt_that_was_behind_long_ones_has_its_own_time_once_they_are_through() -> None:
    bench = a_bench()
    running = bench.start(a_request("running", model=M, max_tokens=4000), name="g-r").call.call_id
    give(bench, running)
    long = bench.start(a_request("long", model=M, prompt_tokens=4000, max_tokens=9), name="g-l").call.call_id
    bench.start(a_request("short", model=M, max_tokens=9), name="g-s")
    for _ in range(round(12 * SPEED.prompt_s(4000) / CHECK_S)):
        give(bench, running)
        bench.later(CHECK_S)
    give(bench, running, long)
    cut_after = 0
    while not [each for each in bench.take(Abort) if each.cut]:
        give(bench, running, long)
        bench.later(CHECK_S)
        cut_after += 1
    own_s = 8.0 + 12.0 * SPEED.prompt_s(4)
    assert own_s <= cut_after * CHECK_S <= own_s + 2.0


class BusyEngine:
    """Engine `SLOWNESS` times slower than its profile: iterations of a token budget, prompts in their order.

    As in vLLM, a token of each decoding request comes first, and prompts take what is left of the budget.
    """

    def __init__(self, speed: EngineSpeed) -> None:
        self.iteration_s = SLOWNESS * speed.iteration_s
        self._budget = speed.batched_tokens_max
        self.prompts: deque[list[int | str]] = deque()
        self.decoding: list[str] = []

    def submit(self, call_id: str, prompt_tokens: int) -> None:
        self.prompts.append([call_id, prompt_tokens])

    def iterate(self) -> list[str]:
        """Return the calls that get a token."""
        left, first = self._budget - len(self.decoding), list[str]()
        while self.prompts and left > 0:
            head = self.prompts[0]
            taken = min(left, int(head[1]))
            head[1], left = int(head[1]) - taken, left - taken
            if not head[1]:
                first.append(str(self.prompts.popleft()[0]))
        tokens = self.decoding + first
        self.decoding = tokens
        return tokens


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.floats(0.05, 1.1),
    st.sampled_from(BUDGETS),
    st.integers(2, 12),
)
def test_a_busy_engine_ten_times_slower_than_its_profile_is_never_made_suspect(
    seed: int, iteration_s: float, budget: int, seqs_max: int
) -> None:
    rng = random.Random(seed)
    speed = EngineSpeed(iteration_s=iteration_s, batched_tokens_max=budget)
    bench, engine = a_bench(speed, seqs_max), BusyEngine(speed)
    bench.agent.state.stats.progress.answered = True  # no allowance for a first token
    waiting = [rng.choice((3, 200, 4000)) for _ in range(seqs_max)]
    next_ns = bench.now_ns + round(engine.iteration_s * 1e9)
    for n in range(200):
        if waiting and rng.random() < 0.3:
            tokens = waiting.pop()
            request = a_request(f"r{n}", model=M, prompt_tokens=tokens, max_tokens=4000)
            engine.submit(bench.start(request, name=f"g{n}").call.call_id, tokens)
        while next_ns <= bench.now_ns:
            give(bench, *engine.iterate())
            next_ns += round(engine.iteration_s * 1e9)
        bench.later(CHECK_S)
        assert not [each for each in bench.take(Abort) if each.cut]
        assert not bench.take(RestartEngine)


@settings(max_examples=100, deadline=None)
@example(1.0, 2048, [1, 93, 4000]).via("decodes took the rest of the second iteration")
@given(
    st.floats(0.05, 1.1), st.sampled_from([64, 512, 2048, 8192]), st.lists(st.integers(1, 4000), max_size=8)
)
def test_a_busy_engine_ten_times_slower_proves_itself_in_time(
    iteration_s: float, budget: int, prompts: list[int]
) -> None:
    speed = EngineSpeed(iteration_s=iteration_s, batched_tokens_max=budget)
    engine = BusyEngine(speed)
    for n, tokens in enumerate(prompts):
        engine.submit(f"c{n}", tokens)
    engine.submit("probe", 1)
    took_s = 2 * engine.iteration_s  # the rest of an iteration under way, and the first
    while "probe" not in engine.iterate():
        took_s += engine.iteration_s
    allowance = Allowance(silence_s=8.0, pace_s=0.0, factor=12.0, speed=speed)
    assert took_s <= proof_s(allowance, sum(prompts), len(prompts))
