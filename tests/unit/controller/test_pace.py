"""The pace of the controller's turns."""

import pytest

from qlm.controller.core.pace import PAUSE_MAX_S, UNPACED_S, pause_s


@pytest.mark.parametrize("took_s", [0.0, 0.001, UNPACED_S])
def test_a_short_turn_is_followed_by_the_shortest_pause(took_s: float) -> None:
    assert pause_s(took_s, 0.01) == 0.01


@pytest.mark.parametrize("took_s", [0.2, 0.35, 0.5])
def test_long_turns_take_a_small_share_of_the_time(took_s: float) -> None:
    assert took_s / (took_s + pause_s(took_s, 0.01)) < 0.1


def test_no_pause_is_longer_than_wakeups_may_wait() -> None:
    assert pause_s(5.0, 0.01) == PAUSE_MAX_S
    assert pause_s(5.0, 9.0) == 9.0
