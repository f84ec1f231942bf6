"""Drift by a robust slope."""

import random

import pytest

from benchmarks.soak.drift import drift, floors, slope
from benchmarks.soak.report import report


def test_a_line_has_its_slope_whatever_a_third_of_its_points_does() -> None:
    times_s = [float(n) for n in range(60)]
    values = [100 + 2 * at_s for at_s in times_s]
    values[::3] = [10_000.0] * 20
    assert slope(times_s, values) == pytest.approx(2, abs=0.5)


def test_noise_and_a_step_at_the_end_are_no_drift() -> None:
    rng = random.Random(1)
    times_s = [float(n) for n in range(100)]
    values = [50 + rng.gauss(0, 2) for _ in times_s[:-5]] + [90.0] * 5
    assert abs(drift(times_s, values)) < 0.05
    assert drift([0.0, 1.0], [0.0, 0.0]) == 0


def test_a_journal_that_is_filled_and_dropped_is_no_drift_but_what_stays_of_it_is() -> None:
    times_s = [5.0 * n for n in range(360)]
    journal = [0.5 + n % 20 * (1 + n / 360) for n in range(360)]
    assert drift(times_s, journal) > 0.05
    assert drift(*floors(times_s, journal, 120)) == 0
    kept = [size + n / 10 for n, size in enumerate(journal)]
    assert drift(*floors(times_s, kept, 120)) > 0.5


def test_a_leak_a_wrong_answer_and_what_is_left_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    readings = [{"at_s": n, "gateway: RSS, MB": 100 + n / 10, "gateway: threads": 5} for n in range(100)]
    found = {
        "before": {"gateway: RSS, MB": 80.0, "gateway: threads": 5},
        "after": {"gateway: RSS, MB": 110.0, "gateway: threads": 5},
        "readings": readings,
        "minutes": [{"minute": n, "p50_ms": 50.0, "p99_ms": 60.0 + 20 * n} for n in range(4)],
        "wrong": ["status 500"],
        "answers": 10,
        "left": ["3 keys waiting:* in Redis"],
    }
    wrong = report("embedded", found)
    assert [each.partition(" ")[0] for each in wrong] == ["wrong", "left:", "gateway:", "p99_ms"]
    assert "gateway: threads" in capsys.readouterr().out
