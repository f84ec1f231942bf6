"""A saturated `qlm serve` sends clients away for as long as its controller forecasts."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from qlm.gateway.core.admission import FREE_SHARE
from qlm.gateway.core.forecast import AdmissionQuery, CurrentForecast, current_forecast, shortfall
from qlm.planner.admission_signal import AdmissionSignal, signal_from_plain
from support.flaky import wait_until
from support.qlm_process import QlmProcess, emulated, serving

WAITING_MAX = 130
BUSY = 100
"""Requests after which the next one cannot meet `DEADLINE_S`, by any guess of the length of answers."""

DEADLINE_S = 36.0
SHORT_S = 5.0
"""Objective that one answer among a thousand does not meet, by any guess of the length of answers."""

OUTPUT_TOKENS = 3000
GIVE_UP_S = 60.0


@pytest.fixture
def served() -> Iterator[QlmProcess]:
    """One emulated A100 that takes two requests at a time, for half a minute each."""
    limits = {"queue_depth_max": WAITING_MAX, "retry_after_max_s": 3600}
    config = emulated("mistral-7b", time_scale=1.0, limits=limits)
    config["instances"][0]["seqs_max"] = 2
    with serving(config) as process:
        yield process


class Visitor:
    """A client that also looks at the forecasts as the controller keeps them.

    Attributes:
        kept: Those that the gateway may go by at present, all of the same waiting requests.
    """

    def __init__(self, http: httpx.Client, admin_url: str) -> None:
        self._http = http
        self._admin_url = f"{admin_url}/admin/v1"
        self.kept: list[AdmissionSignal] = []

    def submit(self, **slo: float) -> httpx.Response:
        body: dict[str, Any] = {"model": "mistral-7b", "prompt": "x" * 200, "max_tokens": OUTPUT_TOKENS}
        body |= {"ignore_eos": True, "slo": {"deadline_ms": 1000 * DEADLINE_S, **slo}}
        return self._http.post("/v1/completions", json=body, headers={"Prefer": "respond-async"})

    def fill(self) -> None:
        """Submit until as many wait as may, and all of them are in the forecast.

        The instance may take its first requests only after the queue was full: then there is room again.
        """
        give_up_s, waiting = time.monotonic() + GIVE_UP_S, 0
        while waiting < WAITING_MAX:
            assert time.monotonic() < give_up_s
            while self.submit().status_code == 202:
                pass
            waiting = self.until_forecast()

    def until_forecast(self) -> int:
        """Look until all that waits has been counted for three seconds, and return how much that is."""
        give_up_s, kept, waiting = time.monotonic() + GIVE_UP_S, dict[int, AdmissionSignal](), 0
        while len(kept) < 4:
            assert time.monotonic() < give_up_s
            queued = sum(
                each["queued"] for each in self._http.get(f"{self._admin_url}/queues").json()["classes"]
            )
            if (signal := self._look()) is not None:
                if queued != waiting or sum(each.waiting for each in signal.classes.values()) != queued:
                    kept, waiting = {}, queued
                else:
                    kept[signal.at_ms] = signal
            time.sleep(0.05)
        self.kept = list(kept.values())
        return waiting

    def _look(self) -> AdmissionSignal | None:
        answer = self._http.get(f"{self._admin_url}/forecast")
        return signal_from_plain(answer.json()) if answer.status_code == 200 else None

    def check_retry(
        self,
        ask: Callable[[], httpx.Response],
        retry_after_s: Callable[[CurrentForecast], float | None],
        code: str,
    ) -> None:
        """Ask, and compare Retry-After with what the kept forecasts say of that moment."""
        began_ns = time.time_ns()
        answer = ask()
        ended_ns = time.time_ns()
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, code)
        assert answer.headers["x-llm-d-request-dropped-reason"] == code
        assert answer.headers["x-should-retry"] == "true"
        retry_ms = int(answer.headers["retry-after-ms"])
        assert int(answer.headers["retry-after"]) == -(-retry_ms // 1000)
        latest = self._look()
        assert latest is not None
        spans = [
            [_at(signal, ns, retry_after_s) for ns in (ended_ns, began_ns)] for signal in (*self.kept, latest)
        ]
        assert min(lowest for lowest, _ in spans) > 1.0, "not for the least time"
        assert any(1000 * low - 2 <= retry_ms <= 1000 * high + 2 for low, high in spans), (retry_ms, spans)


def _at(
    signal: AdmissionSignal, now_ns: int, retry_after_s: Callable[[CurrentForecast], float | None]
) -> float:
    seen = current_forecast(signal, {}, now_ns)
    assert seen is not None
    value = retry_after_s(seen)
    assert value is not None
    return value


@pytest.fixture
def visitor(served: QlmProcess) -> Iterator[Visitor]:
    with httpx.Client(base_url=served.url, timeout=120) as http:
        yield Visitor(http, served.admin_url)


def test_a_saturated_fleet_tells_when_to_come_back(visitor: Visitor) -> None:
    for _ in range(BUSY):
        assert visitor.submit().status_code == 202
    assert BUSY - 2 <= visitor.until_forecast() <= BUSY

    def until_met(seen: CurrentForecast) -> float | None:
        (cls,) = seen.signal.classes
        expected = seen.expected(cls, OUTPUT_TOKENS)
        assert expected is not None
        wanted = AdmissionQuery(
            target_s=DEADLINE_S, first_token=False, max_tokens=OUTPUT_TOKENS, p_met_min=0.5
        )
        missing = shortfall(expected, wanted)
        return None if missing is None else missing.retry_s

    visitor.check_retry(lambda: visitor.submit(p_met_min=0.5), until_met, "objective_unreachable")
    assert visitor.submit(deadline_ms=1000 * SHORT_S).status_code == 202
    visitor.until_forecast()
    never = visitor.submit(deadline_ms=1000 * SHORT_S, p_met_min=0.999)
    assert never.status_code == 429, never.text
    assert never.headers["x-should-retry"] == "false"
    assert "retry-after" not in never.headers


def test_a_full_queue_tells_when_it_has_room(visitor: Visitor) -> None:
    visitor.fill()
    visitor.check_retry(visitor.submit, lambda seen: seen.departure_s(FREE_SHARE * WAITING_MAX), "queue_full")


RETRY_TOKENS = 300
RETRY_DEADLINE_S = 8.0
RETRY_BUSY = 60
"""Requests of which half are enough for the next one to be late, by any guess of the length of answers."""


@pytest.fixture
def choosy() -> Iterator[QlmProcess]:
    """One emulated A100 with room for eight requests, which takes in only what will rather be in time.

    It swaps in the order of its queue: plans tell instances whose model is in use from others then.
    """
    queue_order = {"visit": False, "place": False}
    config = emulated("mistral-7b", time_scale=1.0, limits={"p_met_min": 0.5}, operations=queue_order)
    config["instances"][0]["seqs_max"] = 8
    with serving(config) as process:
        yield process


def test_who_comes_back_as_reported_is_taken_in_also_where_the_model_is_in_use(choosy: QlmProcess) -> None:
    with httpx.Client(base_url=choosy.url, timeout=120) as http:

        def ask(**slo: float) -> httpx.Response:
            objective = {"deadline_ms": 1000 * RETRY_DEADLINE_S, **slo}
            body = {"model": "mistral-7b", "prompt": "x", "max_tokens": RETRY_TOKENS, "ignore_eos": True}
            headers = {"Prefer": "respond-async"}
            return http.post("/v1/completions", json=body | {"slo": objective}, headers=headers)

        def in_use() -> bool:
            assert ask(p_met_min=0.0).status_code == 202
            kept = http.get(f"{choosy.admin_url}/admin/v1/plan")
            return kept.status_code == 200 and any(
                kind.endswith(" in use") for kind in kept.json()["problem"]["kinds"]
            )

        def reported_of(waiting: int) -> bool:
            kept = signal_from_plain(http.get(f"{choosy.admin_url}/admin/v1/forecast").json())
            return sum(each.waiting for each in kept.classes.values()) >= waiting

        wait_until(in_use, "a plan with the model in use", pause_s=1.0)
        for _ in range(RETRY_BUSY):
            assert ask(p_met_min=0.0).status_code == 202
        wait_until(lambda: reported_of(RETRY_BUSY // 2), "a forecast of half of them")
        wait_until(lambda: ask().status_code == 429, "a refusal")  # a gateway looks once a second
        answer, waited_s = ask(), 0
        while answer.status_code == 429:
            assert answer.json()["error"]["code"] == "objective_unreachable"
            # Not earlier, as told: that it is taken in then is what is tested.
            time.sleep(retry_s := int(answer.headers["retry-after"]))
            answer, waited_s = ask(), waited_s + retry_s
            assert waited_s < GIVE_UP_S
        assert answer.status_code == 202, answer.text
        assert waited_s > 0, "the first try was to be refused"
