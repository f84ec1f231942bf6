"""Verdict of `make chaos`: each way to fail a client counts, and nothing else does."""

import pytest

from benchmarks.chaos.client_request import ClientRequest, Kind, reference
from benchmarks.chaos.verdict import Verdict, judge
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.simulator.engine.generation import hashed_generation

TOKENS = 12
WHOLE = reference("k", TOKENS)


def asked(
    text: str = WHOLE, *, finish: str = "length", kind: Kind = "stream", **more: object
) -> ClientRequest:
    one = ClientRequest(key="k", kind=kind, tokens=TOKENS, slo=None, sent_s=1.0, id="req-1", accepted_s=1.1)
    one.text, one.offsets = list(text), list(range(1, len(text) + 1))
    one.finish, one.ends, one.over_s = finish, 1, 2.0
    for name, value in more.items():
        setattr(one, name, value)
    return one


def counts(one: ClientRequest, *, ends: int = 1, flushed_s: float | None = None) -> dict[str, int]:
    verdict = judge([one], {one.id: ends}, [] if flushed_s is None else [(flushed_s, flushed_s + 0.4)])
    assert bool(verdict.incidents) == (not verdict.clean or verdict.refused > 0)
    names = ("lost", "twice", "broken", "output_lost", "gone", "refused")
    return {name: getattr(verdict, name) for name in names if getattr(verdict, name)}


def test_the_reference_is_the_answer_of_the_emulated_engine() -> None:
    start = hashed_generation(block_tokens=16, context_tokens=1000, mean_output_tokens=50.0)
    sampling = Sampling(max_tokens=300, ignore_eos=True)
    made = start(EngineCall(call_id="c", prompt_ids=tuple(b"any prompt"), sampling=sampling))
    assert made.token_ids(0, 300) == tuple(reference("any prompt", 300).encode())


def test_a_whole_answer_that_ended_once_is_what_was_wanted() -> None:
    assert counts(asked()) == {}
    assert counts(asked(kind="async")) == {}


@pytest.mark.parametrize(
    "text", [WHOLE[:-1], WHOLE + WHOLE[-1], WHOLE[:5] + WHOLE[6:], WHOLE[:5] + WHOLE[4:], "?" + WHOLE[1:]]
)
def test_a_missing_repeated_or_wrong_token_breaks_an_answer(text: str) -> None:
    assert counts(asked(text)) == {"broken": 1}


def test_tokens_out_of_order_break_an_answer() -> None:
    assert counts(asked(offsets=[3, 2, 1])) == {"broken": 1}


def test_an_answer_that_never_ended_is_lost_and_one_never_accepted_is_not() -> None:
    assert counts(asked(WHOLE[:5], finish="", ends=0, over_s=None)) == {"lost": 1}
    assert counts(asked("", finish="", ends=0, over_s=None, accepted_s=None)) == {}


def test_an_accepted_request_refused_for_good_is_lost_and_one_never_accepted_is_shown() -> None:
    assert counts(asked("", finish="404", trouble="404 no such request")) == {"lost": 1}
    assert counts(asked("", finish="409", accepted_s=None)) == {"refused": 1}


def test_two_ends_are_seen_by_the_client_or_in_the_story() -> None:
    assert counts(asked(ends=2)) == {"twice": 1}
    assert counts(asked(), ends=2) == {"twice": 1}


def test_output_may_be_lost_in_a_stream_that_met_a_flush_and_nowhere_else() -> None:
    lost = asked(WHOLE[:5], finish="output_lost")
    assert counts(lost, flushed_s=1.5) == {"output_lost": 1}
    assert counts(lost) == {"lost": 1}
    assert counts(lost, flushed_s=2.5) == {"lost": 1}
    assert counts(asked("", finish="output_lost", kind="async"), flushed_s=1.5) == {"lost": 1}


def test_the_answer_of_what_had_ended_may_be_gone_with_a_flush() -> None:
    assert counts(asked("", finish="gone"), flushed_s=1.5) == {"gone": 1}
    assert counts(asked("", finish="gone")) == {"lost": 1}
    # Sent while the fault was played, and before the flush in it; sent after it.
    assert counts(asked("", finish="gone"), flushed_s=0.8) == {"gone": 1}
    assert counts(asked("", finish="gone"), flushed_s=0.5) == {"lost": 1}


def test_counts_of_rounds_add_up() -> None:
    verdict = Verdict()
    for one in (asked(), asked(ends=2)):
        verdict.add(judge([one], {}, []))
    assert (verdict.accepted["stream"], verdict.twice, verdict.clean) == (2, 1, False)
