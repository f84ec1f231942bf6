"""The watchdog never fires while an engine follows its profile, and always when it stands still."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import EngineChanged, GenerationEnded, Progress, Tick
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.progress import WatchSettings
from qlm.domain.actions import Abort, RestartEngine, Return, Submit, SwapModel
from qlm.domain.fleet import EngineState
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.ids import RequestId
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.profile import Profile
from support.agent_bench import Bench, M
from support.requests import a_request

CHECK_S = 0.5
STANDARD = WatchSettings()
SPEED = EngineSpeed(iteration_s=0.2, batched_tokens_max=512)
COSTS = OperationCosts(speed={M: SPEED})
SILENCE_S = 8.0
FACTOR = 12.0
BOUND_S = SILENCE_S + FACTOR * SPEED.prompt_s(100) + 1.0


def bench_with(*ids: str, seqs_max: int = 8, watch: WatchSettings = STANDARD) -> tuple[Bench, dict[str, str]]:
    """Return an agent whose engine has given the first token of each request; call ids by request."""
    bench = Bench(seqs_max=seqs_max, settings=AgentSettings(watch=watch), costs=COSTS)
    calls = {}
    for id in ids:
        calls[id] = bench.start(a_request(id, model=M, max_tokens=4000), name=f"g-{id}").call.call_id
        give(bench, calls[id])
    return bench, calls


def give(bench: Bench, *call_ids: str) -> None:
    bench.send(Progress(chunks=tuple((call_id, (5,)) for call_id in call_ids)))


def silent(bench: Bench, seconds: float, *served: str) -> RestartEngine | None:
    """Let time pass in checks, with tokens for some calls; return the first restart."""
    for _ in range(round(seconds / CHECK_S)):
        if served:
            give(bench, *served)
        bench.later(CHECK_S)
        if found := bench.take(RestartEngine):
            return found[0]
    return None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, SILENCE_S + FACTOR * 0.2), min_size=1, max_size=8), st.integers(1, 4))
def test_it_never_fires_while_tokens_come_within_what_the_profile_allows(
    pauses_s: list[float], count: int
) -> None:
    bench, calls = bench_with(*(f"r{n}" for n in range(count)))
    for pause_s in pauses_s:
        assert silent(bench, pause_s) is None
        assert not bench.take(Abort)
        give(bench, *calls.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.lists(st.floats(0.1, 5.0), max_size=5))
def test_it_always_fires_within_its_bound_when_the_engine_stands_still(
    count: int, before_s: list[float]
) -> None:
    bench, calls = bench_with(*(f"r{n}" for n in range(count)))
    for pause_s in before_s:
        silent(bench, pause_s)
        give(bench, *calls.values())
    found = silent(bench, BOUND_S)
    assert found is not None
    assert "no token for" in found.why


def test_a_pause_of_the_agent_and_a_jump_of_the_clock_are_no_silence_of_the_engine() -> None:
    bench, calls = bench_with("a")
    for gap_s in (3600.0, 86_400.0, -7200.0):
        bench.later(gap_s)
        assert not bench.take(RestartEngine)
        give(bench, *calls.values())


def test_an_engine_without_work_is_never_silent() -> None:
    bench, calls = bench_with("a")
    bench.send(GenerationEnded(call_id=calls["a"], finish="length"))
    bench.store_appends()
    assert silent(bench, 10 * BOUND_S) is None


def test_a_long_prompt_has_the_time_of_its_chunks() -> None:
    bench, _ = bench_with("warm", seqs_max=8)
    bench.send(GenerationEnded(call_id="none", finish="abort"))
    call = bench.start(a_request("long", model=M, prompt_tokens=3000, max_tokens=10), name="g-long").call
    assert silent(bench, SILENCE_S + FACTOR * SPEED.prompt_s(3000) - 2) is None
    give(bench, call.call_id)
    assert silent(bench, SILENCE_S) is None


def test_an_engine_that_was_just_brought_up_has_time_to_warm_up() -> None:
    bench = Bench(costs=COSTS)
    bench.start(a_request("a", model=M, max_tokens=4000))
    assert silent(bench, 60.0) is None
    assert silent(bench, BOUND_S) is not None


def test_an_engine_that_hangs_on_and_off_does_not_teach_that_its_tokens_take_seconds() -> None:
    """Its first answer had one token in 20 s: twelve times that was the limit of the next silence."""
    bench, calls = bench_with("first")
    bench.later(20.0)
    bench.send(GenerationEnded(call_id=calls["first"], finish="stop"))
    bench.store_appends()
    bench.start(a_request("next", model=M, max_tokens=4000))
    assert silent(bench, BOUND_S) is None
    assert silent(bench, FACTOR * 10 * SPEED.iteration_s) is not None


def test_one_stuck_request_is_cut_and_returned_while_the_others_go_on() -> None:
    bench, calls = bench_with("stuck", "b", "c")
    assert silent(bench, BOUND_S, calls["b"], calls["c"]) is None
    aborts = [each for each in bench.take(Abort) if each.cut]
    assert [each.call_ids for each in aborts] == [(calls["stuck"],)]
    give(bench, calls["stuck"])  # too late: another generation will repeat it
    bench.store_appends()
    assert [each.id for each in bench.take(Return)] == ["stuck"]
    assert bench.log[RequestId("stuck")] == [5]
    assert bench.agent.state.stats.progress.cut == 1


def test_an_engine_that_admits_nothing_is_restarted_though_its_batch_goes_on() -> None:
    bench, calls = bench_with("a")
    for id in ("w0", "w1"):
        bench.start(a_request(id, model=M, max_tokens=10), name=f"g-{id}")
    found = silent(bench, 2 * BOUND_S, calls["a"])
    assert found is not None
    assert "and others not" in found.why


def test_a_request_queued_in_the_engine_behind_a_full_batch_is_not_stuck() -> None:
    bench, calls = bench_with("a", "b", seqs_max=2)
    watch = bench.agent.state.requests.kv
    watch.seqs_max = 1  # one of both waits in the engine
    assert silent(bench, BOUND_S / 2, calls["a"]) is None
    assert not [each for each in bench.take(Abort) if each.cut and calls["a"] in each.call_ids]


def test_answers_that_cannot_be_read_restart_the_engine() -> None:
    bench, calls = bench_with("a", "b", "c", "d")
    for id in ("a", "b", "c"):
        bench.send(GenerationEnded(call_id=calls[id], finish="garbled", detail="nonsense"))
    assert silent(bench, 1.0) is not None
    bench.store_appends()
    assert {each.id for each in bench.take(Return)} == {"a", "b", "c"}


def test_restarts_back_off_and_then_the_engine_is_out_with_a_reason() -> None:
    bench, _ = bench_with("a", watch=WatchSettings(restarts_max=2, first_token_s=0.0, silence_s=1.0))
    bench.take(SwapModel)
    waited_s = []
    for _ in range(3):
        restart = silent(bench, BOUND_S)
        assert restart is not None
        bench.send(EngineChanged(model=M, state=EngineState.FAILED, error=restart.why))
        bench.store_appends()
        bench.take(SwapModel)
        began_ns = bench.now_ns
        until_ns = bench.agent.state.engines.failed_until_ns[M]
        waited_s.append(round((until_ns - began_ns) / 1e9))
        error = bench.agent.status().error
        if len(waited_s) < 3:
            bench.awake(M)
            bench.queue()
            bench.take(Submit)
            bench.start(a_request(f"n{len(waited_s)}", model=M, max_tokens=4000), name=f"n{len(waited_s)}")
    assert waited_s[0] < waited_s[1] < waited_s[2]
    assert waited_s[2] > 1700
    assert "out of service for 1800 s" in error
    assert "stood still 3 times" in error


def test_it_can_be_switched_off() -> None:
    bench, _ = bench_with("a", watch=WatchSettings(silence_s=0.0))
    assert silent(bench, 10 * BOUND_S) is None


@pytest.mark.parametrize("profile", builtin_profiles(), ids=lambda p: f"{p.model}-{p.accelerator}-{p.gpus}")
def test_shipped_profiles_give_a_limit_below_a_minute(profile: Profile) -> None:
    speed = EngineSpeed.of(profile)
    assert speed.iteration_s > 0
    assert SILENCE_S + FACTOR * speed.prompt_s(1) < 60


def test_a_tick_without_an_engine_does_nothing() -> None:
    bench, _ = bench_with()
    bench.send(EngineChanged(model=M, state=EngineState.FAILED, error="gone"))
    assert RestartEngine not in {type(each) for each in bench.send(Tick())}


def test_a_scored_prompt_proves_nothing_of_the_engine_that_comes_next() -> None:
    watch = Bench().agent.state.stats.progress
    watch.scored("a")
    watch.engine_woke(0)
    watch.observe(Bench().agent.state.requests, Bench().agent.state.stats.work, 1, 8.0)
    assert not watch.answered


def test_an_engine_that_scores_prompts_one_after_another_makes_progress() -> None:
    """No answer begins before all prompts are scored: each first call goes before each second one."""
    bench, calls = bench_with("warm", seqs_max=40)
    bench.send(GenerationEnded(call_id=calls["warm"], finish="length"))
    bench.store_appends()
    wanted = RequestExtensions(prompt_logprobs=1)
    scoring = [
        bench.start(
            replace(a_request(f"s{n}", model=M, prompt_tokens=64, max_tokens=10), extensions=wanted),
            name=f"g-s{n}",
        ).call.call_id
        for n in range(12)
    ]
    for call_id in scoring:
        assert silent(bench, 4.0) is None
        bench.send(Progress(chunks=(), prompt_logprobs=((call_id, b"scored"),)))
    for call_id in scoring:
        assert silent(bench, 0.5) is None
        give(bench, call_id)
    assert not bench.take(Abort)
    assert silent(bench, BOUND_S) is not None, "an engine that stands still is found all the same"
