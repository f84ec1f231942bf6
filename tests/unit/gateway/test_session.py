from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import DeadlineSlo
from qlm.gateway.core.answer_text import answer_text
from qlm.gateway.core.session import Mode, Session, Timing
from qlm.gateway.core.session_events import (
    Action,
    CancelRequest,
    ClientGone,
    Event,
    FetchFailed,
    FetchOutput,
    OutputAnnounced,
    OutputFetched,
    Resync,
    SendEvent,
    SendFinal,
    SendKeepAlive,
    StopGeneration,
    Tick,
)
from qlm.gateway.tokenizers.byte import ByteTokenizer

S = 1_000_000_000
ID = RequestId("r")
TIMING = Timing(
    keepalive_ns=10 * S,
    poll_ns=2 * S,
    poll_max_ns=8 * S,
    grace_ns=10 * S,
    lost_after_ns=15 * S,
    unknown_after_ns=45 * S,
)
SLO = DeadlineSlo(deadline_ms=60_000)


def metadata(stop: Sequence[str] = (), *, detached: bool = False) -> RequestMetadata:
    return RequestMetadata(
        id=ID,
        cls=request_class(ModelId("m"), SLO, 0),
        tenant="t",
        slo=SLO,
        arrival_ns=0,
        prompt_tokens=1,
        sampling=Sampling(max_tokens=100),
        answer=Answer(kind=AnswerKind.CHAT, stop=tuple(stop)),
        detached=detached,
    )


def session(
    mode: Mode = Mode.STREAM,
    *,
    stop: Sequence[str] = (),
    shown: int = 0,
    detached: bool = False,
    **timing: int,
) -> Session:
    request = metadata(stop, detached=detached)
    pauses: dict[str, Any] = {
        name: timing.get(name, getattr(TIMING, name)) for name in Timing.__dataclass_fields__
    }
    return Session(request, answer_text(request, ByteTokenizer()), mode, Timing(**pauses), 0, shown)


def part(text: str, offset: int = 0, outcome: Outcome | None = None, detail: str = "") -> OutputSlice:
    return OutputSlice(id=ID, offset=offset, token_ids=tuple(text.encode()), outcome=outcome, detail=detail)


def heard(text: str, offset: int = 0, outcome: Outcome | None = None, now_ns: int = 0) -> OutputAnnounced:
    return OutputAnnounced(part(text, offset, outcome), now_ns)


def said(offset: int, text: str) -> SendEvent:
    """Text that was sent as it came, a token each character."""
    return SendEvent(offset, text, tuple(text.encode()))


def play(subject: Session, *events: Event) -> list[Action]:
    return [action for event in events for action in subject.handle(event)]


def test_output_is_sent_as_it_comes_with_the_tokens_so_far() -> None:
    assert play(session(), heard("ab"), heard("c", 2)) == [said(2, "ab"), said(3, "c")]


def test_the_end_has_its_reason() -> None:
    subject = session()
    assert play(subject, heard("ab"), heard("", 2, Outcome.LENGTH))[-1] == SendFinal(
        2, "", "length", Outcome.LENGTH
    )
    assert subject.over


def test_text_that_comes_with_a_good_end_is_part_of_the_last_event() -> None:
    actions = play(session(), heard("ab"), heard("cd", 2, Outcome.LENGTH))
    assert actions == [said(2, "ab"), SendFinal(4, "cd", "length", Outcome.LENGTH, token_ids=tuple(b"cd"))]


def test_text_that_comes_with_a_bad_end_is_sent_before_it() -> None:
    actions = play(session(), heard("ab"), heard("cd", 2, Outcome.FAILED))
    assert actions == [said(2, "ab"), said(4, "cd"), SendFinal(4, "", None, Outcome.FAILED)]


def test_a_plain_answer_is_sent_whole_at_its_end() -> None:
    actions = play(session(Mode.WHOLE), heard("ab"), heard("c", 2, Outcome.STOP))
    assert actions == [SendFinal(3, "abc", "stop", Outcome.STOP, token_ids=tuple(b"abc"))]


@pytest.mark.parametrize("again", [heard("ab"), heard("b", 1), heard("abc"), heard("", 2)])
def test_overlapping_announcements_are_trimmed(again: OutputAnnounced) -> None:
    actions = play(session(), heard("ab"), again, heard("cd", 2))
    assert "".join(each.text for each in actions if isinstance(each, SendEvent)) == "abcd"


def test_a_gap_is_read_from_the_store_and_never_skipped() -> None:
    subject = session()
    assert play(subject, heard("ab"), heard("d", 3)) == [said(2, "ab"), FetchOutput(1)]
    assert play(subject, OutputFetched(part("bcd", 1), 0)) == [said(4, "cd")]


def test_a_gap_heard_of_while_reading_is_read_next() -> None:
    subject = session()
    assert play(subject, heard("c", 2), heard("d", 3, Outcome.STOP)) == [FetchOutput(0)]
    assert play(subject, OutputFetched(part("abc"), 0)) == [said(3, "abc"), FetchOutput(2)]
    assert isinstance(play(subject, OutputFetched(part("cd", 2, Outcome.STOP), 0))[-1], SendFinal)


def test_other_output_for_tokens_already_shown_is_lost_not_spliced() -> None:
    subject = session()
    actions = play(subject, heard("ab"), heard("axcd"))
    assert isinstance(actions[1], SendFinal)
    assert (actions[1].outcome, actions[1].finish_reason) == (Outcome.OUTPUT_LOST, None)
    assert actions[2] == CancelRequest(Outcome.OUTPUT_LOST, "the output log differs from the output shown")
    assert play(subject, heard("cd", 2)) == []


def test_an_end_before_what_was_shown_is_lost_output() -> None:
    final = play(session(), heard("abc"), OutputFetched(part("ab", 0, Outcome.STOP), 0))[1]
    assert isinstance(final, SendFinal)
    assert final.outcome is Outcome.OUTPUT_LOST


def test_a_store_with_less_than_was_shown_gets_time_to_recover() -> None:
    subject = session()
    assert (
        play(subject, heard("abc"), OutputFetched(part("a", 0), 1 * S), OutputFetched(None, 10 * S))[1:] == []
    )
    assert play(subject, OutputFetched(part("cd", 2), 12 * S)) == [said(4, "d")]
    assert play(subject, OutputFetched(part("a", 0), 13 * S), OutputFetched(part("a", 0), 27 * S)) == []
    final = play(subject, OutputFetched(part("a", 0), 28 * S))[0]
    assert isinstance(final, SendFinal)
    assert (final.outcome, final.detail) == (
        Outcome.OUTPUT_LOST,
        "the output log has 1 tokens, 4 were shown",
    )


def test_a_request_that_stays_unknown_is_lost() -> None:
    subject = session()
    actions = play(subject, *(OutputFetched(None, n * S, lost=True) for n in (0, 44, 45)))
    assert [type(each) for each in actions] == [SendFinal]


def test_a_resumed_stream_sends_only_what_follows() -> None:
    assert play(session(shown=3), heard("abcde")) == [said(5, "de")]


def test_a_resumed_stream_can_replay_the_tokens_of_what_was_shown_but_not_their_text() -> None:
    request = metadata()
    text = answer_text(request, ByteTokenizer())
    subject = Session(request, text, Mode.STREAM, TIMING, 0, 3, replays=True)
    assert play(subject, heard("ab"), heard("cd", 2), heard("e", 4)) == [
        SendEvent(4, "d", tuple(b"abcd")),
        said(5, "e"),
    ]


def test_a_resumed_stream_says_nothing_of_parts_already_shown() -> None:
    assert play(session(shown=3), heard("ab"), heard("c", 2), heard("d", 3)) == [said(4, "d")]


def test_a_client_that_claims_too_much_cannot_end_the_request_for_others() -> None:
    actions = play(
        session(shown=9), heard("abc"), OutputFetched(part("abc"), 0), OutputFetched(part("abc"), 15 * S)
    )
    assert [type(each) for each in actions] == [SendFinal]


def test_a_stop_string_ends_the_answer_and_the_generation() -> None:
    subject = session(stop=["END"])
    assert play(subject, heard("abE"), heard("NDxyz", 3)) == [
        SendEvent(3, "ab", tuple(b"abE")),
        SendFinal(5, "", "stop", Outcome.STOP, token_ids=tuple(b"ND"), stop_reason="END"),
        StopGeneration(),
    ]


def test_text_before_a_stop_string_comes_with_the_end() -> None:
    final = SendFinal(5, "ab", "stop", Outcome.STOP, token_ids=tuple(b"abEND"), stop_reason="END")
    assert play(session(stop=["END"]), heard("abEND"))[0] == final


def test_what_was_kept_back_comes_with_the_end() -> None:
    actions = play(session(stop=["END"]), heard("abEN"), heard("", 4, Outcome.LENGTH))
    assert actions[-1] == SendFinal(4, "EN", "length", Outcome.LENGTH)


def test_a_background_session_only_stops_the_generation() -> None:
    subject = session(Mode.BACKGROUND, stop=["END"])
    actions = play(subject, heard("abEND"))
    assert [type(each) for each in actions] == [SendFinal, StopGeneration]


def test_an_error_ends_the_stream_with_its_detail() -> None:
    subject = session()
    final = play(subject, OutputAnnounced(part("", 0, Outcome.FAILED, "engine refused"), 0))[0]
    assert final == SendFinal(0, "", None, Outcome.FAILED, "engine refused")


def test_a_request_of_which_nothing_was_shown_is_lost_once_the_queue_does_not_hold_it_either() -> None:
    """Not while the queue may hold it, and its time begins anew whenever it may."""
    subject = session()
    assert play(subject, *(OutputFetched(None, n * S) for n in range(100))) == []
    assert (
        play(subject, OutputFetched(None, 100 * S, lost=True), OutputFetched(None, 144 * S, lost=True)) == []
    )
    assert play(subject, OutputFetched(None, 145 * S), OutputFetched(None, 146 * S, lost=True)) == []
    assert play(subject, OutputFetched(part(""), 150 * S), OutputFetched(None, 151 * S, lost=True)) == []
    assert play(subject, OutputFetched(None, 195 * S, lost=True)) == []
    (final,) = play(subject, OutputFetched(None, 196 * S, lost=True))
    assert isinstance(final, SendFinal)
    assert (final.outcome, final.offset) == (Outcome.OUTPUT_LOST, 0)
    assert subject.over


def test_a_request_that_is_not_known_is_looked_up_twice_as_often_and_ever_so() -> None:
    subject = session(Mode.WHOLE)
    asked_s = []
    for second in range(12):
        if play(subject, Tick(second * S)):
            asked_s.append(second)
            play(subject, OutputFetched(None, second * S))
    assert asked_s == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_a_silent_stream_gets_comments_at_its_pace() -> None:
    subject = session(poll_ns=1000 * S)
    assert play(subject, Tick(9 * S)) == []
    assert play(subject, Tick(10 * S), Tick(11 * S), Tick(20 * S)) == [SendKeepAlive(), SendKeepAlive()]


def test_a_busy_stream_gets_none() -> None:
    subject = session(poll_ns=1000 * S)
    play(subject, heard("a", now_ns=9 * S))
    assert play(subject, Tick(18 * S)) == []


def test_a_silent_request_is_looked_up_ever_more_rarely_until_output_comes() -> None:
    subject = session(Mode.WHOLE)
    asked_s = []
    for second in range(40):
        if play(subject, Tick(second * S)):
            asked_s.append(second)
            play(subject, OutputFetched(part(""), second * S))
    assert asked_s == [2, 4, 8, 16, 24, 32]
    play(subject, heard("a", now_ns=40 * S))
    assert play(subject, Tick(42 * S)) == [FetchOutput(0)]


def test_a_failed_look_up_is_tried_again() -> None:
    subject = session(Mode.WHOLE)
    assert play(subject, Tick(2 * S), Tick(20 * S)) == [FetchOutput(0)]
    assert play(subject, FetchFailed(20 * S), Tick(22 * S)) == [FetchOutput(0)]


def test_after_missed_announcements_it_is_looked_up_at_once() -> None:
    subject = session(Mode.WHOLE)
    play(subject, Resync(1 * S))
    assert subject.wake_ns == 1 * S
    assert play(subject, Tick(1 * S)) == [FetchOutput(0)]


def test_a_broken_stream_is_cancelled_after_its_grace() -> None:
    subject = session(poll_ns=1000 * S, poll_max_ns=1000 * S)
    assert play(subject, heard("ab"), ClientGone(5 * S), heard("c", 2, now_ns=6 * S))[1:] == []
    assert subject.wake_ns == 15 * S
    assert play(subject, Tick(14 * S)) == []
    why = "its client disconnected, and no client resumed it within 10 s"
    assert play(subject, Tick(15 * S)) == [CancelRequest(Outcome.CANCELLED, why)]
    assert subject.over


def test_without_grace_it_is_cancelled_at_once() -> None:
    cancelled = CancelRequest(Outcome.CANCELLED, "its client disconnected")
    assert play(session(Mode.WHOLE, grace_ns=0), ClientGone(5 * S)) == [cancelled]


def test_a_detached_request_outlives_its_readers() -> None:
    subject = session(detached=True, grace_ns=0)
    assert play(subject, ClientGone(5 * S)) == []
    assert subject.over


def test_an_answer_that_ends_in_the_grace_is_not_cancelled() -> None:
    subject = session(poll_ns=1000 * S)
    actions = play(subject, ClientGone(5 * S), heard("ab", 0, Outcome.STOP, 6 * S), Tick(15 * S))
    assert actions == [SendFinal(2, "", "stop", Outcome.STOP, token_ids=tuple(b"ab"))]


@given(data=st.data())
def test_any_announcements_and_any_reconnects_show_the_answer_exactly_once(data: st.DataObject) -> None:
    """Announcements are cut, repeated and dropped at will; the client reconnects with the last id it saw."""
    text = data.draw(st.text(alphabet="aäb€E", max_size=12))
    ids = (*text.encode(), EOS_ID)
    stop = data.draw(st.lists(st.sampled_from(["bE", "EEE", "äb", "a"]), max_size=2))
    reference = answer_text(metadata(stop), ByteTokenizer())
    wanted = reference.feed(ids) + reference.finish()

    got: list[str] = []
    got_ids: list[int] = []
    finals: list[SendFinal] = []
    seen = 0
    spans = st.tuples(st.integers(0, len(ids)), st.integers(0, len(ids))).map(sorted)
    for announced in data.draw(st.lists(st.lists(spans, max_size=5), max_size=4), label="broken connections"):
        subject = session(stop=stop, shown=seen)
        for start, end in announced:
            outcome = Outcome.STOP if end == len(ids) else None
            event = OutputAnnounced(
                OutputSlice(id=ID, offset=start, token_ids=ids[start:end], outcome=outcome), 0
            )
            seen = show(play(subject, event), got, got_ids, finals, seen)
        if finals:
            break
    else:
        whole = OutputFetched(OutputSlice(id=ID, offset=0, token_ids=ids, outcome=Outcome.STOP), 0)
        show(play(session(stop=stop, shown=seen), whole), got, got_ids, finals, seen)
    assert "".join(got) == wanted
    assert finals[0].offset == reference.tokens
    assert got_ids == list(ids[: reference.tokens])


def show(
    actions: Sequence[Action], got: list[str], got_ids: list[int], finals: list[SendFinal], seen: int
) -> int:
    for action in actions:
        match action:
            case SendEvent(offset=offset, text=piece):
                got.append(piece)
                got_ids.extend(action.token_ids)
                seen = offset
            case SendFinal():
                got.append(action.text)
                got_ids.extend(action.token_ids)
                finals.append(action)
    return seen


def test_a_later_session_goes_on_from_when_the_output_came_to_an_earlier_one() -> None:
    earlier, later = session(), session(shown=2)
    earlier.handle(heard("abc", now_ns=1 * S))
    later.handle(heard("abcd", now_ns=3 * S))
    later.take_times(earlier, 4 * S)
    assert (later.times.first_ns, later.times.last_ns) == (1 * S, 4 * S)
    later.handle(heard("e", 4, now_ns=5 * S))
    assert (later.times.first_ns, later.times.last_ns) == (1 * S, 5 * S)


def test_tokens_whose_time_an_earlier_session_knew_have_no_other_one() -> None:
    earlier, later = session(), session()
    earlier.handle(heard("abc", now_ns=1 * S))
    later.take_times(earlier, 2 * S)
    later.handle(heard("ab", now_ns=3 * S))
    assert later.times.last_ns == 1 * S
    later.handle(heard("cd", 2, now_ns=4 * S))
    assert later.times.last_ns == 4 * S
