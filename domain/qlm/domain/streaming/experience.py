"""Quality of experience of a stream: Andes' equation 1, and a form that no late token can raise.

With D the time to read the answer, L the lateness of its tokens:

    QoE  = 1 - mean(L) / (L_last + D / 2)        (Andes, equation 1, up to the end of reading)
    QoE* = (D / 2) / (D / 2 + mean(L))

Equation 1 divides by a span that ends with the last token, so an answer that is late gains by withholding its
last token: L = (1, ..., 1) of eight tokens read in 2 s has 0.5, and 0.625 with the last one a second later.
QoE* is equal for a plain delay, and falls with every token that comes later.
"""

from collections.abc import Sequence
from enum import Enum, auto

from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline


class Span(Enum):
    """End of the integrals of equation 1. The paper says only "actual time to the last token"."""

    READING = auto()
    """The end of reading: then what comes faster than the reader changes nothing, as the paper demands."""
    DELIVERY = auto()
    """The delivery of the last token. An answer that comes late but at once then scores 0."""


def qoe(timeline: Timeline) -> float:
    """Return Andes' quality of experience up to the end of reading, from 0 to 1; 0 without a token."""
    if not timeline.tokens:
        return 0.0
    half_s = timeline.reader.reads_s(timeline.tokens) / 2
    return 1 - timeline.mean_late_s / (timeline.late_s + half_s)


def qoe_star(timeline: Timeline) -> float:
    """Return the quality of experience that no later token raises, from 0 to 1; 0 without a token."""
    if not timeline.tokens:
        return 0.0
    half_s = timeline.reader.reads_s(timeline.tokens) / 2
    return half_s / (half_s + timeline.mean_late_s)


def qoe_of_times(
    times_s: Sequence[float], reader: Reader, *, span: Span = Span.READING, alpha: float = 1.0
) -> float:
    """Return Andes' quality of experience of an answer by the times of its tokens.

    Args:
        times_s: Delivery of each token, in order, seconds from arrival.
        reader: The reader.
        span: End of the integrals.
        alpha: Factor per second by which the first token is late, from 0 to 1 (Andes' variant; 1 is without).
    """
    if not times_s:
        return 0.0
    timeline = Timeline(reader)
    starts_s = []
    for token, at_s in enumerate(times_s):
        timeline.deliver(1, at_s)
        starts_s.append(reader.due_s(token) + timeline.late_s)
    end_s = timeline.read_end_s if span is Span.READING else times_s[-1]
    wanted = sum(_digested(end_s - reader.due_s(token), reader) for token in range(len(times_s)))
    digested = sum(_digested(end_s - start_s, reader) for start_s in starts_s)
    quality = digested / wanted if wanted > 0 else 1.0
    return quality * float(alpha ** max(0.0, times_s[0] - reader.ttft_s))


def _digested(since_s: float, reader: Reader) -> float:
    """Return the area under the digestion of one token, so long after its start."""
    takes_s = 1 / reader.tokens_per_s
    if since_s <= 0:
        return 0.0
    return since_s**2 / (2 * takes_s) if since_s < takes_s else since_s - takes_s / 2
