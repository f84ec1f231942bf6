"""The waiting queue is brought into order if something has changed, and only then."""

import random
from collections.abc import Mapping
from math import inf

import pytest

from qlm.agents.vllm_scheduler.engine_levers import Arrangement
from qlm.agents.vllm_scheduler.levers import Levers
from support.vllm_engine import BLOCK_TOKENS, Engine, EngineRequest, engine, hosted

GRAMMAR = "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"


def ours(request: EngineRequest) -> bool:
    return request.state != GRAMMAR and not request.request_id.startswith("session")


def levers(order: Mapping[str, int], *, skips: bool = False) -> Levers:
    return Levers((), order, frozenset(), skips, inf)


def waiting(names: str, *, free: int = 1000) -> Engine:
    """Return an engine where these wait, of one block each with the next token."""
    return engine([EngineRequest(name, num_prompt_tokens=BLOCK_TOKENS - 1) for name in names], free=free)


def names(scheduler: Engine) -> tuple[str, str]:
    """Return who is before the gate and who is behind it."""
    ids = [each.request_id for each in scheduler.waiting]
    return "".join(ids[: scheduler.waiting.open]), "".join(ids[scheduler.waiting.open :])


def test_steps_in_which_nothing_changes_cost_no_new_order() -> None:
    scheduler, order = waiting("abcd"), levers({"c": 0, "a": 1})
    arrangement = Arrangement(scheduler, ours)
    arrangement.follow(order)
    assert names(scheduler) == ("ca", "bd")
    assert scheduler.admit() == "c"
    arrangement.follow(order)
    assert scheduler.admit() == "a"
    arrangement.follow(order)
    assert (names(scheduler), scheduler.waiting.arranged) == (("", "bd"), 1)


def test_new_levers_a_new_request_and_a_preempted_one_change_the_order() -> None:
    scheduler = waiting("abc")
    arrangement = Arrangement(scheduler, ours)
    arrangement.follow(levers({"a": 0}))
    order = levers({"b": 0, "p": 1, "n": 2})
    arrangement.follow(order)
    assert names(scheduler) == ("b", "ac")
    scheduler.waiting.add_request(EngineRequest("n"))
    arrangement.follow(order)
    assert names(scheduler) == ("bn", "ac")
    scheduler.waiting.prepend_request(EngineRequest("p", "PREEMPTED"))
    arrangement.follow(order)
    assert names(scheduler) == ("bpn", "ac")


def test_who_is_left_to_vllm_is_first_until_the_policy_decides_about_it() -> None:
    scheduler, order = waiting("abc"), levers({"a": 0})
    scheduler.requests["c"].state = GRAMMAR
    arrangement = Arrangement(scheduler, ours)
    arrangement.follow(order)
    assert names(scheduler) == ("ca", "b")
    scheduler.requests["c"].state = "WAITING"
    arrangement.follow(order)
    assert names(scheduler) == ("a", "cb")


def test_a_session_that_vllm_admits_takes_no_place_of_others() -> None:
    scheduler, order = waiting("ab"), levers({"a": 0, "b": 1}, skips=True)
    scheduler.waiting.add_request(EngineRequest("session"))
    arrangement = Arrangement(scheduler, ours)
    arrangement.follow(order)
    assert scheduler.admit() == "session"
    scheduler.free = 1
    arrangement.follow(order)
    assert names(scheduler) == ("a", "b")


def test_with_skips_the_gate_opens_as_blocks_become_free() -> None:
    scheduler, order = waiting("abc", free=1), levers({"a": 0, "b": 1, "c": 2}, skips=True)
    arrangement = Arrangement(scheduler, ours)
    arrangement.follow(order)
    assert names(scheduler) == ("a", "bc")
    assert scheduler.admit() == "a"
    scheduler.free = 0
    arrangement.follow(order)
    assert (names(scheduler), scheduler.waiting.arranged) == (("", "bc"), 1)
    scheduler.free = 2
    arrangement.follow(order)
    assert names(scheduler) == ("bc", "")


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_always_that_of_a_new_arrangement(seed: int, skips: bool) -> None:
    draw = random.Random(seed)
    scheduler = waiting("abcdefghij", free=3)
    arrangement, order = Arrangement(scheduler, ours), levers({})
    for step in range(200):
        match draw.randrange(6):
            case 0:
                id, state = draw.choice(["session", "+"]), draw.choice(["WAITING", GRAMMAR])
                scheduler.waiting.add_request(EngineRequest(f"{id}{step}", state))
            case 1 if scheduler.waiting:
                draw.choice(scheduler.waiting).state = "WAITING"  # its grammar is compiled
            case 2:
                wanted = draw.sample(
                    [each.request_id for each in scheduler.waiting], k=len(scheduler.waiting) // 2
                )
                order = levers({id: position for position, id in enumerate(wanted)}, skips=skips)
            case 3:
                scheduler.free = draw.randrange(12)
            case _ if scheduler.waiting.open > 0:
                scheduler.admit()
        arrangement.follow(order)
        kept = names(scheduler)
        Arrangement(scheduler, ours).follow(order)
        assert names(scheduler) == kept
        scheduler.waiting.untouched = True


def test_a_host_arranges_once_per_decision() -> None:
    scheduler = engine([EngineRequest("r", "RUNNING"), *(EngineRequest(f"w{n}") for n in range(9))])
    host = hosted(scheduler, "fcfs")
    for step in range(50):
        host.prepare(1.0 + step / 1000, paused=False)
    assert scheduler.waiting.arranged == 1
