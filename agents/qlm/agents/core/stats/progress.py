"""Progress of the awake engine, and restarts of engines that made none."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from qlm.agents.core.request_table import RequestTable
from qlm.agents.core.stats.work_meter import WorkMeter
from qlm.domain.ids import ModelId

GAP_MAX_NS: Final = 1_000_000_000
"""Most silence between two observations: a paused agent and a clock that is set make none."""

LOOK_MAX_NS: Final = 2_000_000_000
"""Longest time between two looks at each request."""

LOOKS: Final = 8
"""Least number of looks at a request within the silence that is allowed."""

STRIKES_NS: Final = 60_000_000_000
"""Time for which a cut request or a broken answer counts against its engine."""

FAILED_PAUSE_NS: Final = 5_000_000_000
"""Shortest time until a failed engine is started again."""

DOUBLED_MAX: Final = 6
"""Most doublings of that time, to 320 s, after failures in a row beside other models."""

PAUSE_STARTS: Final = 4
"""Least pause beside other models in starts: those that fail take at most a fifth of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """Settings of the watchdog.

    Attributes:
        silence_s: Fixed part of the time for which an engine may be silent; 0 switches the watchdog off.
        factor: Multiple of the longest duration by the profile that is added to it.
        first_token_s: Further time until the first token of an engine that was just brought up.
        restarts_max: Restarts within `window_s` after which an engine is taken out of service.
        window_s: Time for which a restart counts.
        out_s: Time out of service, after which the engine is started again.
    """

    silence_s: float = 8.0
    factor: float = 12.0
    first_token_s: float = 60.0
    restarts_max: int = 3
    window_s: float = 600.0
    out_s: float = 1800.0


class ProgressWatch:
    """Silence of the engine and of each of its requests, and the restarts that followed.

    Attributes:
        answered: The engine has generated a token since it woke.
        restarting: A restart was decided and the engine has not changed since.
        restarted: Restarts by model.
        cut: Requests cut because they alone made no progress.
        garbled: Answers that could not be read.
    """

    def __init__(self) -> None:
        self.answered = self.restarting = False
        self.restarted: dict[ModelId, int] = {}
        self.cut = self.garbled = 0
        self._restart_times_ns: dict[ModelId, list[int]] = {}
        self._strike_times_ns: dict[str, list[int]] = {}
        self._observed_ns = 0
        self._tokens = 0
        self._silent_ns = 0
        self._longest_ns = 0
        self._seen_tokens: dict[str, int] = {}
        self._silent_of_ns: dict[str, int] = {}
        self._begun: set[str] = set()
        self._repeating: set[str] = set()
        self._ran = False
        self._trusted_at: int | None = None
        self._unlooked_ns = 0
        self._scarce = False
        self._worked = False

    @property
    def silent_s(self) -> float:
        """Time without a token of any request."""
        return self._silent_ns / 1e9

    @property
    def longest_silent_s(self) -> float:
        """Longest time without a token of any one request."""
        return self._longest_ns / 1e9

    def silent_of_s(self, call_id: str) -> float:
        """Return the time without a token of one request."""
        return self._silent_of_ns.get(call_id, 0) / 1e9

    def engine_woke(self, now_ns: int) -> None:
        """Start the observation of another engine."""
        self.answered = self.restarting = False
        self._observed_ns, self._tokens, self._silent_ns, self._longest_ns = now_ns, 0, 0, 0
        self._seen_tokens.clear()
        self._silent_of_ns.clear()
        self._begun.clear()
        self._repeating.clear()
        self._strike_times_ns.clear()
        self._ran, self._unlooked_ns, self._scarce, self._worked = False, 0, False, False
        self._trusted_at = None

    def trusted(self, tokens: int) -> None:
        """Note that a suspect engine is used again since it is healthy; it has generated `tokens` so far."""
        self._trusted_at = tokens

    def unproven(self, tokens: int) -> bool:
        """Return True if the engine has generated nothing since it was trusted by its health alone."""
        return self._trusted_at == tokens

    def began(self, call_id: str) -> None:
        """Note the first token of a generation."""
        self._begun.add(call_id)

    def scored(self, call_id: str) -> None:
        """Note the log probabilities of a prompt: progress, as a first token is, though none is generated."""
        self.began(call_id)
        self._worked = True

    def repeated(self, call_id: str) -> None:
        """Note tokens that repeat the log, or media made ready: progress that brings no other call nearer."""
        self._repeating.add(call_id)
        self._worked = True

    def observe(self, requests: RequestTable, work: WorkMeter, now_ns: int, silence_s: float) -> None:
        """Add the time since the last observation to the silence of those that got no token in it.

        Each request is looked at several times within `silence_s`, the shortest silence that matters, and at
        each observation once one may have been silent for that long.
        """
        passed_ns = min(max(0, now_ns - self._observed_ns), GAP_MAX_NS)
        self._observed_ns = now_ns
        advanced = work.output_tokens != self._tokens or self._worked
        self._worked = False
        self._tokens = work.output_tokens
        self.answered |= advanced
        self._silent_ns = 0 if advanced or not self._ran else self._silent_ns + passed_ns
        self._ran = bool(requests.calls)
        # Without free blocks the engine may have preempted a request, which then waits for others to end.
        self._scarce = self._scarce or not requests.kv.free_blocks
        self._unlooked_ns += passed_ns
        silence_ns = round(silence_s * 1e9)
        due = self._unlooked_ns >= min(LOOK_MAX_NS, silence_ns // LOOKS)
        if due or self._longest_ns + self._unlooked_ns >= silence_ns:
            self._look(requests)

    def _look(self, requests: RequestTable) -> None:
        """Add the time since the last look to the silence of each request that got no token in it."""
        calls, before, silent_ns = requests.calls, self._seen_tokens, dict[str, int]()
        tokens = {call_id: len(tracked.output) for call_id, tracked in calls.items()}
        # Without free blocks, a request may have waited without any fault of the engine.
        still = [] if self._scarce else [id for id, n in tokens.items() if before.get(id) == n]
        moved_up: set[str] | None = None
        for call_id in still:
            if tokens[call_id] == calls[call_id].resumed_at:
                if moved_up is None:
                    moved_up = self._moved_up(before)
                if call_id in moved_up or call_id in self._begun or call_id in self._repeating:
                    continue
            silent_ns[call_id] = self._silent_of_ns.get(call_id, 0) + self._unlooked_ns
        self._seen_tokens, self._silent_of_ns = tokens, silent_ns
        self._longest_ns = max(silent_ns.values(), default=0)
        self._unlooked_ns, self._scarce = 0, False
        self._begun.clear()
        self._repeating.clear()

    def _moved_up(self, before: Iterable[str]) -> set[str]:
        """Return the requests behind one that has begun since: with that, their prompts came nearer."""
        behind, moved = False, set[str]()
        for call_id in before:
            if behind:
                moved.add(call_id)
            behind |= call_id in self._begun
        return moved

    def strike(self, kind: str, now_ns: int) -> None:
        """Count a cut request (`cut`) or a broken answer (`garbled`) against the engine."""
        self.cut += kind == "cut"
        self.garbled += kind == "garbled"
        self._strike_times_ns.setdefault(kind, []).append(now_ns)

    def strikes(self, kind: str, now_ns: int) -> int:
        """Return the recent strikes of a kind."""
        if kind not in self._strike_times_ns:
            return 0
        recent = [at_ns for at_ns in self._strike_times_ns[kind] if now_ns - at_ns < STRIKES_NS]
        self._strike_times_ns[kind] = recent
        return len(recent)

    def restarts(self, model: ModelId, now_ns: int) -> None:
        """Note that an engine is restarted."""
        self.restarting = True
        self.restarted[model] = self.restarted.get(model, 0) + 1
        self._restart_times_ns.setdefault(model, []).append(now_ns)

    def recent_restarts(self, model: ModelId, settings: WatchSettings, now_ns: int) -> int:
        """Return the restarts of an engine within the window."""
        window_ns = round(settings.window_s * 1e9)
        recent = [at for at in self._restart_times_ns.get(model, ()) if now_ns - at < window_ns]
        self._restart_times_ns[model] = recent
        return len(recent)

    def pause_ns(self, model: ModelId, settings: WatchSettings, now_ns: int) -> int:
        """Return the pause before a failed engine starts again: longer with each restart, then `out_s`."""
        recent = self.recent_restarts(model, settings, now_ns)
        if recent > settings.restarts_max:
            return round(settings.out_s * 1e9)
        return FAILED_PAUSE_NS << max(0, recent - 1)


def pause_beside_others_ns(start_ns: int, failures: int) -> int:
    """Return the least pause of a failed engine whose accelerator other models use.

    Args:
        start_ns: Duration of the start that failed; 0 if the engine was awake.
        failures: Failures since it was awake, at least 1.
    """
    return max(FAILED_PAUSE_NS << min(failures - 1, DOUBLED_MAX), PAUSE_STARTS * start_ns)
