"""Describes why the batch policy of an engine runs a request, holds it, or preempts it, in sentences.

An engine does not report its batch. What its policy weighs is known: a request's tokens, and its objective.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qlm.cli.inspect.render import span

FCFS: Final = "fcfs"

RULES: Final[Mapping[str, str]] = {
    "round-robin": "requests run in turns of 50 iterations; who has run longest is preempted",
    "edf": "the earliest deadline, of an answer or of a reader's next token, runs; the latest is preempted",
    "virtual-queue": "the first of the virtual queue run; others are preempted for a better rank",
    "andes": "those run whose quality of experience gains most per block; who gains least is preempted",
    "tokenflow": "readers take turns by what they have not read; who has the fullest buffer is preempted",
    "unified": "the least slack of readers and deadlines runs first; who can spare most is preempted",
    "annealing": "batches run in sequence, so that most objectives are met; nothing is preempted",
    "annealing-continuous": "free slots are filled so that most objectives are met; nothing is preempted",
}
"""What decides in each policy; docs/batch-policies.md has the methods."""


NO_DEADLINE_BESIDE: Final = ("andes", "tokenflow")
"""Policies that ignore a deadline beside a first token or a reader."""


def policy_of(configured: Sequence[Mapping[str, Any]], instance: str | None) -> str | None:
    """Return the batch policy of an instance; None if the gateway does not know the instance."""
    for each in configured:
        if each["id"] == instance:
            return str(each.get("batching") or FCFS)
    return None


def reader_text_s(request: Mapping[str, Any], now_s: float) -> float | None:
    """Return the time for which the reader of a running request has text; none for one without a reader.

    While it waits for some, it is the time that it has waited in all, negative.
    """
    slo = request["slo"]
    pace = slo.get("tokens_per_s") or (1000 / slo["tpot_ms"] if slo.get("tpot_ms") else None)
    if pace is None:
        return None
    due_s: float = request["arrival_s"] + slo["ttft_ms"] / 1000 + request["output_tokens"] / pace
    # Time for which the reader has waited already moves all that follows.
    late_s = request["late_by_s"] if request.get("met") is False and "deadline_ms" not in slo else 0.0
    text_s = due_s + (late_s or 0.0) - now_s
    return text_s if text_s > 0 else due_s - now_s  # what it is late by has the wait of now, too


def batching_lines(request: Mapping[str, Any], policy: str | None, now_s: float) -> Iterator[str]:
    """Describe what the batch policy weighs for a request that an instance has."""
    if request["status"] not in ("running", "parked") or policy is None:
        return
    if policy == FCFS:
        yield "its engine's batch policy is first come, first served: only the agent evicts for urgent work"
        return
    rule = RULES.get(policy, "see docs/batch-policies.md")
    yield f"the batch policy of {request['instance']} is {policy}: {rule}"
    yield from _reader(request, now_s)
    if (whole_s := _whole_answer_s(request, now_s)) is not None:
        weighed = f", which {policy} does not weigh" if policy in NO_DEADLINE_BESIDE else ""
        yield f"its whole answer is {_left(whole_s)}{weighed}"


def _reader(request: Mapping[str, Any], now_s: float) -> Iterator[str]:
    text_s = reader_text_s(request, now_s)
    if text_s is None and request["deadline_s"] is None:
        yield "it has no objective: it runs in what others leave"
    elif text_s is None and request["slo"]["kind"] == "token" and request["output_tokens"]:
        others = "" if request["slo"].get("deadline_ms") else ", and no other counts"
        yield f"its first token is out{others}"
    elif text_s is None:
        yield f"it has no reader; {_left(request['deadline_s'] - now_s)}"
    elif not request["output_tokens"]:
        yield f"its reader waits for the first token: {_left(text_s)}"
    elif text_s > 0:
        yield f"its reader has text for {span(text_s)} more: it may be on hold or preempted until then"
    else:
        waits = f"waits for {span(-text_s)}, earlier waits included"
        yield f"its reader has read all text and {waits}: it should run now"


def _whole_answer_s(request: Mapping[str, Any], now_s: float) -> float | None:
    """Return the time to the deadline beside a first token or a reader; none without one."""
    slo = request["slo"]
    if slo["kind"] not in ("token", "reading") or not slo.get("deadline_ms"):
        return None
    return float(request["arrival_s"] + slo["deadline_ms"] / 1000 - now_s)


def _left(seconds: float) -> str:
    return f"due in {span(seconds)}" if seconds >= 0 else f"late by {span(-seconds)}"
