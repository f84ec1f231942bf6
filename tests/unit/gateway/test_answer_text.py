import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.outcome import Outcome
from qlm.gateway.core.answer_text import AnswerText, answer_text, finish_reason
from qlm.gateway.tokenizers.byte import ByteDetokenizer, ByteTokenizer
from support.requests import a_request

EOS = frozenset((EOS_ID,))


def answer(
    stop: Sequence[str] = (),
    *,
    include_stop: bool = False,
    min_tokens: int = 0,
    end_ids: frozenset[int] = EOS,
    named_ids: frozenset[int] = frozenset(),
) -> AnswerText:
    return AnswerText(
        ByteDetokenizer(),
        stop=stop,
        include_stop=include_stop,
        min_tokens=min_tokens,
        end_ids=end_ids,
        named_ids=named_ids,
    )


def released(text: AnswerText, ids: Sequence[int]) -> list[str]:
    return [text.feed([id]) for id in ids]


def test_what_could_become_a_stop_string_is_kept_back() -> None:
    text = answer(["END"])
    assert released(text, b"aENb") == ["a", "", "", "ENb"]


def test_the_text_ends_before_the_stop_string_and_tokens_end_with_it() -> None:
    text = answer(["END"])
    assert text.feed(b"aENDxyz") == "a"
    assert (text.met, text.tokens, text.finish()) == (True, 4, "")


def test_the_stop_string_may_be_kept() -> None:
    text = answer(["END"], include_stop=True)
    assert text.feed(b"aENDxyz") == "aEND"


def test_what_was_kept_back_is_released_at_the_end() -> None:
    text = answer(["END"])
    assert text.feed(b"aEN") + text.finish() == "aEN"


def test_the_stop_string_that_is_complete_first_wins() -> None:
    text = answer(["abcd", "bc"])
    assert text.feed(b"xabcd") == "xa"
    assert text.tokens == 4


def test_a_stop_string_within_min_tokens_does_not_count() -> None:
    text = answer(["b"], min_tokens=2)
    assert text.feed(b"abcb") == "abc"
    assert text.tokens == 4


def test_a_stop_string_may_begin_within_min_tokens() -> None:
    text = answer(["bc"], min_tokens=2)
    assert (text.feed(b"abcd"), text.tokens) == ("a", 3)


def test_tokens_that_end_an_answer_count_but_have_no_text() -> None:
    text = answer(end_ids=frozenset((ord("!"),)))
    assert (text.feed(b"hi!"), text.tokens) == ("hi", 3)


def test_with_include_stop_their_text_is_kept() -> None:
    text = answer(include_stop=True, end_ids=frozenset((ord("!"),)))
    assert text.feed(b"hi!") == "hi!"


def test_an_incomplete_character_at_the_end_is_left_out() -> None:
    text = answer()
    assert text.feed("aä".encode()[:-1]) + text.finish() == "a"


@pytest.mark.parametrize(
    ("fed", "outcome", "reason"),
    [(b"a", Outcome.LENGTH, "length"), (b"a", Outcome.STOP, "stop"), (b"aEND", Outcome.LENGTH, "stop")],
)
def test_the_finish_reason_is_stop_if_a_stop_string_was_met(
    fed: bytes, outcome: Outcome, reason: str
) -> None:
    text = answer(["END"])
    text.feed(fed)
    assert finish_reason(text, outcome) == reason


@pytest.mark.parametrize(
    ("fed", "stop", "reason"),
    [
        (b"aENDEN", ["x", "END"], "END"),
        (b"ab!", [], ord("!")),
        (b"ab!", ["x"], ord("!")),
        (b"ab?", [], None),
        (b"a!b", [], None),
        (b"", [], None),
    ],
)
def test_the_stop_reason_is_the_stop_string_or_the_token_to_name(
    fed: bytes, stop: list[str], reason: int | str | None
) -> None:
    text = answer(stop, end_ids=frozenset(b"!?"), named_ids=frozenset(b"!"))
    text.feed(fed)
    assert text.stop_reason == reason


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({}, None),
        ({"stop_token_ids": (EOS_ID,)}, None),
        ({"stop_token_ids": (EOS_ID,), "ignore_eos": True}, EOS_ID),
    ],
)
def test_the_tokenizers_own_end_is_no_reason_to_name(sampling: dict[str, Any], reason: int | None) -> None:
    text = answer_text(a_request(**sampling).metadata(), ByteTokenizer())
    text.feed([ord("a"), EOS_ID])
    assert text.stop_reason == reason


few_letters = st.text(alphabet="aäb€", min_size=1, max_size=4)


@given(
    ids=st.lists(st.sampled_from([*"aäb€".encode(), EOS_ID]), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=10),
    stop=st.lists(few_letters, max_size=3),
    min_tokens=st.integers(0, 5),
    include_stop=st.booleans(),
)
def test_text_and_token_count_do_not_depend_on_the_cutting(
    ids: list[int], cuts: list[int], stop: list[str], min_tokens: int, include_stop: bool
) -> None:
    singly = answer(stop, include_stop=include_stop, min_tokens=min_tokens)
    wanted = "".join(released(singly, ids))
    text = answer(stop, include_stop=include_stop, min_tokens=min_tokens)
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    got = "".join(text.feed(ids[a:b]) for a, b in itertools.pairwise(edges))
    assert (got, text.finish(), text.tokens, text.met) == (wanted, singly.finish(), singly.tokens, singly.met)


@given(
    content=st.text(alphabet="abc", max_size=40),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_the_whole_text_is_the_content_up_to_the_first_stop_string_completed(
    content: str, stop: list[str]
) -> None:
    text = answer(stop)
    got = text.feed(content.encode()) + text.finish()
    ends = [(content.find(each) + len(each), stop.index(each)) for each in stop if each in content]
    wanted = content
    if ends:
        end, first = min(ends)
        wanted = content[: end - len(stop[first])]
    assert got == wanted


@given(
    content=st.text(alphabet="abc", max_size=40),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1),
)
def test_no_stop_string_is_ever_shown(content: str, stop: list[str]) -> None:
    text = answer(stop)
    shown = "".join(released(text, content.encode()))
    assert not any(each in shown for each in stop)
