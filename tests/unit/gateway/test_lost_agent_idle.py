"""Idle time of a reader whose agent is lost in mid-stream, and another one goes on."""

import pytest

from qlm.domain.group import request_class
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.request import Answer, AnswerKind, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import ReadingSlo
from qlm.gateway.core.answer_text import answer_text
from qlm.gateway.core.session import Mode, Session, Timing
from qlm.gateway.core.session_events import OutputAnnounced, SendEvent
from qlm.gateway.tokenizers.byte import ByteTokenizer

S = 1_000_000_000
TEXT = "abcdefghijklmnopqrst"
GAP_S = 4
SLO = ReadingSlo(ttft_ms=1000, tokens_per_s=5)
"""Token k is due at 1 + k / 5 seconds."""


def request() -> RequestMetadata:
    return RequestMetadata(
        id=RequestId("r"), cls=request_class(ModelId("m"), SLO, 0), tenant="t", slo=SLO, arrival_ns=0,
        prompt_tokens=1, sampling=Sampling(max_tokens=100), answer=Answer(kind=AnswerKind.CHAT),
    )  # fmt: skip


@pytest.mark.parametrize("repeated", [0, 3, 10], ids=["goes on", "repeats three tokens", "repeats all"])
def test_idle_time_grows_by_the_gap_once(repeated: int) -> None:
    """Ten tokens come when they are due, then none for four seconds, and the rest at the same pace."""
    asked = request()
    timing = Timing(
        keepalive_ns=100 * S, poll_ns=100 * S, poll_max_ns=100 * S, grace_ns=100 * S, lost_after_ns=100 * S,
        unknown_after_ns=100 * S,
    )  # fmt: skip
    session = Session(asked, answer_text(asked, ByteTokenizer()), Mode.STREAM, timing, 0, 0)
    shown = ""

    def hear(first: int, end: int, at_s: float) -> None:
        nonlocal shown
        output = OutputSlice(
            id=asked.id, offset=first, token_ids=tuple(TEXT[first:end].encode()),
            outcome=Outcome.LENGTH if end == len(TEXT) else None, detail="",
        )  # fmt: skip
        actions = session.handle(OutputAnnounced(output, round(at_s * S)))
        shown += "".join(each.text for each in actions if isinstance(each, SendEvent))

    for token in range(10):
        hear(token, token + 1, 1 + token / 5)
    hear(10 - repeated, 11, 1 + 10 / 5 + GAP_S)
    timeline = session.times.timeline
    assert timeline is not None
    for token in range(11, len(TEXT)):
        # The reader, who waited once, is in time for all that comes at the pace after it.
        hear(token, token + 1, 1 + token / 5 + GAP_S)
        assert timeline.late_s == pytest.approx(GAP_S)
    assert TEXT.startswith(shown) and len(shown) >= len(TEXT) - 1
    assert (timeline.tokens, timeline.stalls) == (len(TEXT), 1)
