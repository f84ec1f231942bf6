"""Watchdog of the engine's progress: an engine that stands still is restarted, a stuck request is cut.

Progress is a token. An engine may be silent for `silence_s` plus `factor` times the longest time that its
profile gives for what it computes. So long prompts, engine preemption and an engine ten times slower than its
profile raise no alarm: a slow engine is a matter of estimates.

A cut makes the engine suspect: it gets no request, and plans avoid it, until it has generated a token for a
new request, a probe. So one request that waits is enough to see that an engine admits nothing. An engine that
is only busy generates the token of the probe; the cut has cost it a pause. An engine that declines a request,
as by 401 or 500, is suspect in the same way: its health says nothing of that, and it would draw all work. So
is one that breaks off a generation, is found healthy, and breaks off another without a token in between.

Silence is summed over checks, and a gap between two checks counts one second at most: a paused agent process
and a clock that is set make no silence.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from qlm.agents.core.costs.engine_speed import NO_SPEED, EngineSpeed
from qlm.agents.core.events import EngineProbed
from qlm.agents.core.lifecycle import cut, return_all
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.state import AgentState
from qlm.domain.actions import Action, RestartEngine
from qlm.domain.ids import ModelId

TOGETHER: Final = 2
"""Requests stuck at once, or cut within a minute, that show that the engine itself stands still."""

GARBLED_MAX: Final = 3
"""Broken answers within a minute after which the engine is restarted."""

TOKEN_S: Final = 2.0
"""Fixed part of the time in which a suspect engine must generate a token."""

SLOWER_MAX: Final = 10.0
"""Factor by which an engine may be slower than its profile without an alarm."""

LEARNED_MAX_S: Final = 60.0
"""Longest part of an allowance that comes from measured speed."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Time that an engine may be silent, seconds: fixed parts, and a multiple of its longest durations.

    Attributes:
        silence_s: Part by the settings.
        pace_s: Part by the measured speed.
    """

    silence_s: float
    pace_s: float
    factor: float
    speed: EngineSpeed

    def after_s(self, tokens: int) -> float:
        """Return the limit for an engine that has `tokens` tokens of prompts to compute first."""
        return self.silence_s + self.computing_s(tokens)

    def computing_s(self, tokens: int) -> float:
        """Return the part of the limit that the engine may take to compute."""
        return self.pace_s + self.factor * self.speed.prompt_s(tokens)


def check(state: AgentState, now_ns: int) -> list[Action]:
    """Note the progress since the last check; cut stuck requests, or have the engine restarted."""
    watch, model, settings = state.stats.progress, state.engines.active, state.settings.watch
    if model is None or not settings.silence_s:
        return []
    requests = state.requests
    watch.observe(requests, state.stats.work, now_ns, settings.silence_s)
    if watch.restarting:
        return []
    silence_s = _silence_s(state)
    if max(watch.silent_s, watch.longest_silent_s) <= silence_s and not watch.strikes("garbled", now_ns):
        return []
    allowance = _allowance(state, model)
    if reason := _engine_hangs(state, allowance):
        return _restart(state, reason, now_ns)
    if watch.strikes("garbled", now_ns) >= GARBLED_MAX:
        return _restart(state, f"{GARBLED_MAX} of its answers could not be read", now_ns)
    stuck = list(_stuck(state, allowance))
    for _ in stuck:
        watch.strike("cut", now_ns)
    if stuck and watch.strikes("cut", now_ns) >= TOGETHER:
        return _restart(state, f"it serves some requests and others not: {stuck[0].id} stands still", now_ns)
    if not stuck:
        return []
    actions = cut(requests, stuck, "its engine made no progress with it")
    _distrust(state, allowance, f"{stuck[0].id} stood still in it")
    return actions


def declined(state: AgentState, why: str) -> None:
    """Suspect the awake engine, which declined a request, until it has generated a token."""
    if (model := state.engines.active) is not None:
        _distrust(state, _allowance(state, model), why)


def broke_off(state: AgentState, why: str) -> None:
    """Suspect the awake engine, which broke off a generation, until it is found healthy.

    If it does so again before its next token, health is not enough: it must generate one.
    """
    if state.stats.progress.unproven(state.stats.work.output_tokens):
        declined(state, why)
    else:
        state.engines.suspect = state.engines.active is not None


def _distrust(state: AgentState, allowance: Allowance, why: str) -> None:
    calls = state.requests.calls.values()
    waiting = sum(each.tokens for each in calls if len(each.output) == each.resumed_at)
    state.engines.distrust(proof_s(allowance, waiting, len(calls)), why)


def _silence_s(state: AgentState) -> float:
    settings = state.settings.watch
    return settings.silence_s + (0.0 if state.stats.progress.answered else settings.first_token_s)


def _allowance(state: AgentState, model: ModelId) -> Allowance:
    factor = state.settings.watch.factor
    return Allowance(
        silence_s=_silence_s(state),
        pace_s=min(LEARNED_MAX_S, factor * _token_s(state, model)),
        factor=factor,
        speed=state.costs.speed.get(model, NO_SPEED),
    )


def _token_s(state: AgentState, model: ModelId) -> float:
    """Return the measured time per token.

    It is not more than `SLOWER_MAX` times the longest by the profile: an engine that hangs on and off would
    teach that its tokens take seconds.
    """
    measured_s, speed = state.stats.pace_of(model).token_s, state.costs.speed.get(model, NO_SPEED)
    return measured_s if speed is NO_SPEED else min(measured_s, SLOWER_MAX * speed.prompt_s(0))


def proof_s(allowance: Allowance, waiting_tokens: int, calls: int) -> float:
    """Return the time for the token of a new request behind prompts of `waiting_tokens` tokens.

    Each of the `calls` that decodes takes a token of the budget of each iteration.
    """
    iterations = 1 + waiting_tokens // allowance.speed.batched_tokens_max
    return TOKEN_S + allowance.computing_s(waiting_tokens + 1 + calls * iterations)


def probed(state: AgentState, event: EngineProbed, now_ns: int) -> list[Action]:
    """Note the answer of a probe; have an engine restarted that generated no token for a new request."""
    engines, suspect = state.engines, state.engines.suspect
    token_s, restarting = engines.token_due_s, state.stats.progress.restarting
    next_after_ns = now_ns + state.settings.retry_ns
    engines.probed(healthy=event.healthy, by_token=event.by_token, next_after_ns=next_after_ns)
    if suspect and not engines.suspect and not event.by_token:
        state.stats.progress.trusted(state.stats.work.output_tokens)
    if event.healthy or not event.by_token or not token_s or restarting or engines.active is None:
        return []
    if event.declined:
        return _declining(state, event.declined, now_ns)
    return _restart(state, f"no token for a new request within {token_s:.1f} s", now_ns)


def _declining(state: AgentState, why: str, now_ns: int) -> list[Action]:
    """Stop an engine that declines new requests, once none runs in it; let those that wait here move.

    That is no restart of one that stands still, after some of which it would be out of service for long.
    """
    model = state.engines.active
    assert model is not None
    if state.requests.calls:
        return return_all(state.requests, f"its engine declines: {why}", now_ns, generating=False)
    state.stats.progress.restarting = True
    return [RestartEngine(model=model, why=f"it declines to serve: {why}")]


def _engine_hangs(state: AgentState, allowance: Allowance) -> str:
    """Return the reason if no request has received a token for too long, else an empty text."""
    watch, calls = state.stats.progress, state.requests.calls.values()
    if not calls or watch.silent_s <= allowance.silence_s:
        return ""
    longest = max((each.tokens for each in calls if len(each.output) == each.resumed_at), default=0)
    limit_s = allowance.after_s(longest)
    if watch.silent_s <= limit_s:
        return ""
    return f"no token for {watch.silent_s:.1f} s while {len(calls)} requests run; at most {limit_s:.1f} s"


def _stuck(state: AgentState, allowance: Allowance) -> Iterator[TrackedRequest]:
    """Yield the requests without progress for too long, while others have some.

    An engine admits prompts in the order of their arrival, so a request waits for those before it only. Its
    silence counts anew when one of these begins (`ProgressWatch.observe`).
    """
    watch, kv, before = state.stats.progress, state.requests.kv, 0
    if not watch.answered or kv.pool_in_engine:
        return  # A batch policy may let a request wait as long as it likes.
    if watch.longest_silent_s <= allowance.silence_s:
        return
    for call_id, tracked in state.requests.calls.items():
        waits = len(tracked.output) == tracked.resumed_at
        before += tracked.tokens if waits else 0
        queued = waits and kv.running > kv.seqs_max
        if not queued and watch.silent_of_s(call_id) > allowance.after_s(before if waits else 0):
            yield tracked


def _restart(state: AgentState, reason: str, now_ns: int) -> list[Action]:
    model = state.engines.active
    assert model is not None
    state.stats.progress.restarts(model, now_ns)
    return [RestartEngine(model=model, why=f"it stands still: {reason}")]
