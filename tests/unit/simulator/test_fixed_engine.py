import pytest

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.simulator.engine.fixed import FixedLatencyEngine
from qlm.simulator.engine.generation import hashed_generation

CAPACITY = EngineCapacity(kv_tokens=8192, block_tokens=16, seqs_max=64, context_tokens=100)


def make_engine(latency_ns: int = 50) -> FixedLatencyEngine:
    start = hashed_generation(block_tokens=16, context_tokens=100, mean_output_tokens=1e9)
    return FixedLatencyEngine(CAPACITY, start, latency_ns=latency_ns)


def call(name: str, max_tokens: int = 3) -> EngineCall:
    return EngineCall(call_id=name, prompt_ids=(1, 2), sampling=Sampling(max_tokens=max_tokens))


def test_each_request_is_answered_whole_after_the_same_time() -> None:
    engine = make_engine()
    engine.add(call("a"), 0)
    engine.add(call("b"), 20)
    first = engine.step(20)
    assert first is not None
    assert (first.duration_ns, [e.call_id for e in first.emissions]) == (30, ["a"])
    assert (len(first.emissions[0].token_ids), first.emissions[0].finish) == (3, "length")
    second = engine.step(50)
    assert second is not None
    assert (second.duration_ns, [e.call_id for e in second.emissions]) == (20, ["b"])
    assert engine.step(70) is None
    assert engine.running == 0


def test_load_does_not_slow_it_down() -> None:
    engine = make_engine()
    for i in range(1000):
        engine.add(call(f"r{i}"), 0)
    step = engine.step(0)
    assert step is not None
    assert (step.duration_ns, len(step.emissions)) == (50, 1000)


def test_aborted_and_sleeping_requests_are_not_answered() -> None:
    engine = make_engine()
    engine.add(call("a"), 0)
    engine.add(call("b"), 0)
    assert engine.abort("a")
    assert not engine.abort("a")
    engine.sleep()
    assert engine.step(0) is None
    engine.wake()
    step = engine.step(100)
    assert step is not None
    assert (step.duration_ns, [e.call_id for e in step.emissions]) == (1, ["b"])


def test_a_request_is_running_until_its_answer_is_out() -> None:
    engine = make_engine()
    engine.add(call("a"), 0)
    assert engine.running == 1
    engine.step(0)
    assert engine.running == 1
    with pytest.raises(InvalidValueError, match="call_id"):
        engine.add(call("a"), 10)


def test_a_latency_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="latency_ns"):
        make_engine(0)
