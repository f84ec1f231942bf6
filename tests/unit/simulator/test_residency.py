from collections.abc import Callable

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.simulator.engine.residency import Residency, ResidentEngine

PROFILE = find_profile(builtin_profiles(), "mistral-7b", "A100")
UNLOAD, WARM, RELOAD, COLD = (
    round(seconds * 1e9)
    for seconds in (PROFILE.unload_s, PROFILE.swap_warm_s, PROFILE.swap_reload_s, PROFILE.swap_cold_s)
)


@pytest.mark.parametrize(("level", "back"), [(1, WARM), (2, RELOAD)])
def test_each_move_takes_the_time_of_the_profile(level: int, back: int) -> None:
    engine = ResidentEngine(PROFILE, Residency.COLD)
    assert (engine.sleep_level, engine.start(), engine.sleep_level) == (0, COLD, 0)
    assert (engine.sleep(level), engine.sleep_level) == (UNLOAD, level)
    assert (engine.wake(), engine.state) == (back, Residency.AWAKE)
    assert (engine.wake(), engine.sleep(level)) == (0, UNLOAD)


def test_a_deeper_sleep_takes_no_time_but_costs_more_afterwards() -> None:
    engine = ResidentEngine(PROFILE)
    assert (engine.sleep(1), engine.sleep(2), engine.wake()) == (UNLOAD, 0, RELOAD)


def test_weights_can_come_back_before_the_engine_serves() -> None:
    engine = ResidentEngine(PROFILE)
    engine.sleep(1)
    assert (engine.load_weights(), engine.sleep_level) == (WARM, 1)
    assert (engine.wake(), engine.sleep_level) == (0, 0)


def test_a_failed_process_starts_cold() -> None:
    engine = ResidentEngine(PROFILE)
    engine.fail()
    assert engine.state is Residency.FAILED
    assert (engine.start(), engine.state) == (COLD, Residency.AWAKE)


@pytest.mark.parametrize(
    ("state", "move"),
    [
        (Residency.AWAKE, ResidentEngine.start),
        (Residency.COLD, ResidentEngine.wake),
        (Residency.FAILED, ResidentEngine.wake),
        (Residency.COLD, ResidentEngine.fail),
        (Residency.FAILED, lambda engine: engine.sleep(1)),
        (Residency.AWAKE, lambda engine: engine.sleep(3)),
    ],
)
def test_impossible_moves_are_refused(state: Residency, move: Callable[[ResidentEngine], object]) -> None:
    with pytest.raises(InvalidValueError):
        move(ResidentEngine(PROFILE, state))


def test_weights_files_in_host_memory_make_starts_and_reloads_shorter() -> None:
    engine = ResidentEngine(PROFILE, Residency.COLD, in_page_cache=lambda: True)
    assert engine.start() == COLD - (RELOAD - WARM)
    engine.sleep(2)
    assert engine.wake() == WARM
    engine.sleep(1)
    assert engine.wake() == WARM
