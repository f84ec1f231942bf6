"""A clock that never goes back, and comes back to the wall clock."""

from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.steady_clock import ClockState, SteadyClock

S = 1_000_000_000


class Machine:
    """A wall clock that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.elapsed_ns = 0
        self.set_by_ns = 0
        self.clock = self.new_clock()

    def new_clock(self, begun: ClockState | None = None) -> SteadyClock:
        return SteadyClock(
            lambda: 1_000 * S + self.elapsed_ns + self.set_by_ns, lambda: self.elapsed_ns, begun=begun
        )


def test_it_is_the_wall_clock_while_nobody_sets_it() -> None:
    machine = Machine()
    machine.elapsed_ns = 7 * S
    assert machine.clock.now_ns() == 1_007 * S


def test_it_follows_small_steps_forwards_at_once() -> None:
    machine = Machine()
    for _ in range(3):
        machine.set_by_ns += S
        assert machine.clock.now_ns() == 1_000 * S + machine.set_by_ns


def test_set_forwards_it_follows_once_that_has_stood_for_a_minute() -> None:
    machine = Machine()
    machine.set_by_ns = 3_600 * S
    assert machine.clock.now_ns() == 1_000 * S
    machine.elapsed_ns = 59 * S
    assert machine.clock.now_ns() == 1_059 * S
    machine.elapsed_ns = 60 * S
    assert machine.clock.now_ns() == 4_660 * S
    machine.set_by_ns += 2 * S
    assert machine.clock.now_ns() == 4_660 * S, "each step has to stand"


@given(st.sampled_from([-600, 600]), st.lists(st.integers(1, 100), min_size=1))
def test_a_clock_that_goes_on_with_another_has_its_time(set_by_s: int, steps: list[int]) -> None:
    machine = Machine()
    machine.set_by_ns = set_by_s * S
    machine.elapsed_ns = 5 * S
    machine.clock.now_ns()
    machine.elapsed_ns = 20 * S
    other = machine.new_clock(machine.clock.state())
    for seconds in steps:
        machine.elapsed_ns += seconds * S
        assert other.now_ns() == machine.clock.now_ns()


def test_a_mistake_that_is_corrected_within_a_minute_leaves_no_trace() -> None:
    machine = Machine()
    machine.set_by_ns = 3_600 * S
    for second in range(59):
        machine.elapsed_ns = second * S
        assert machine.clock.now_ns() == (1_000 + second) * S
    machine.set_by_ns = 0
    assert machine.clock.now_ns() == 1_058 * S
    machine.set_by_ns, machine.elapsed_ns = 3_600 * S, 70 * S
    assert machine.clock.now_ns() == 1_070 * S, "the next one counts from its own beginning"


def test_set_back_it_goes_slower_until_both_agree() -> None:
    machine = Machine()
    machine.set_by_ns = -10 * S
    assert machine.clock.now_ns() == 1_000 * S
    machine.elapsed_ns = 4 * S
    assert machine.clock.now_ns() == 1_003 * S
    machine.elapsed_ns = 40 * S
    assert machine.clock.now_ns() == 1_030 * S
    machine.elapsed_ns = 50 * S
    assert machine.clock.now_ns() == 1_040 * S


@given(st.lists(st.tuples(st.integers(0, 100 * S), st.integers(-100 * S, 100 * S))))
def test_it_always_goes_on(steps: list[tuple[int, int]]) -> None:
    machine = Machine()
    before_ns = machine.clock.now_ns()
    for passes_ns, set_by_ns in steps:
        machine.elapsed_ns += passes_ns
        machine.set_by_ns += set_by_ns
        now_ns = machine.clock.now_ns()
        assert now_ns >= before_ns + passes_ns * 3 // 4
        before_ns = now_ns


def test_who_asks_at_each_nanosecond_sees_the_last_one_come() -> None:
    machine = Machine()
    machine.set_by_ns = -60 * S
    began_ns = machine.clock.now_ns()
    for _ in range(8):
        machine.elapsed_ns += 1
        machine.clock.now_ns()
    assert machine.clock.now_ns() == began_ns + 8


@given(st.lists(st.tuples(st.integers(0, 100 * S), st.integers(-100 * S, 100 * S))))
def test_left_alone_it_comes_back_to_the_wall_clock(steps: list[tuple[int, int]]) -> None:
    machine = Machine()
    for passes_ns, set_by_ns in steps:
        machine.elapsed_ns += passes_ns
        machine.set_by_ns += set_by_ns
        machine.clock.now_ns()
    for passes_s in (0, 60, 4 * 100 * (len(steps) + 1)):
        machine.elapsed_ns += passes_s * S
        now_ns = machine.clock.now_ns()
    assert now_ns == 1_000 * S + machine.elapsed_ns + machine.set_by_ns
