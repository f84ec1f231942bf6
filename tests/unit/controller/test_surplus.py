"""Queues that seem to hold unknown messages: when they are read, and how soon again."""

import pytest

from qlm.controller.shell.surplus import PATIENCE_NS, PAUSE_MAX_NS, PAUSE_NS, Counted, SurplusWatch
from qlm.domain.ids import QueueName

Q, R = QueueName("q"), QueueName("r")
S = 1_000_000_000


def test_a_surplus_counts_when_it_is_seen_twice_in_a_row() -> None:
    watch, known = SurplusWatch(), {Q: Counted(1, 1), R: Counted(1, 1)}
    assert watch.suspects({Q: 2, R: 1}, known, 0) == set()
    assert watch.suspects({Q: 1, R: 2}, known, 2 * S) == set()
    assert watch.suspects({Q: 2, R: 2}, known, 4 * S) == {R}
    assert watch.suspects({Q: 1}, {}, 6 * S) == {Q}, "the store knows none of its requests"


def test_messages_that_are_known_two_seconds_later_are_no_surplus_however_many_follow() -> None:
    watch = SurplusWatch()
    for check in range(30):
        accepted = 10_000 + 500 * check
        assert not watch.suspects({Q: accepted + 40}, {Q: Counted(accepted, accepted)}, check * 2 * S)


def test_messages_of_the_check_before_that_are_still_unknown_are_read_at_once() -> None:
    watch = SurplusWatch()
    watch.suspects({Q: 10_600}, {Q: Counted(10_000, 10_000)}, 0)
    assert watch.suspects({Q: 11_100}, {Q: Counted(10_500, 10_500)}, 2 * S) == {Q}


def test_a_small_surplus_of_a_queue_that_others_join_is_read_in_proportion_to_the_length_of_the_queue() -> (
    None
):
    for depth, seconds in ((100, 4), (1000, 30), (10_000, 300), (100_000, 600)):
        watch, check = SurplusWatch(), 0
        while not watch.suspects({Q: depth}, {Q: Counted(depth - 1, depth + 100 * check)}, check * 2 * S):
            check += 1
        assert check * 2 == pytest.approx(seconds, abs=2)


def test_checks_in_which_requests_have_just_left_do_not_hide_a_surplus() -> None:
    watch, known = SurplusWatch(), Counted(999, 10**9)
    seen = [
        check
        for check in range(60)
        if watch.suspects(
            {Q: 1000 if check % 4 else 999}, {Q: known._replace(accepted=10**9 + check)}, check * 2 * S
        )
    ]
    assert 30 / 2 <= seen[0] <= 40


def test_a_queue_that_is_read_without_a_repair_has_longer_and_longer_pauses() -> None:
    watch, now_ns = SurplusWatch(), 0
    pauses: list[int] = []
    watch.suspects({Q: 1}, {}, now_ns)
    read_ns = now_ns
    while len(pauses) < 12:
        now_ns += PAUSE_NS // 2
        if watch.suspects({Q: 1}, {}, now_ns):
            pauses.append(now_ns - read_ns)
            read_ns = now_ns
            watch.read(Q, repaired=False, now_ns=now_ns)
    assert pauses[1:5] == [PAUSE_NS, 2 * PAUSE_NS, 4 * PAUSE_NS, 8 * PAUSE_NS]
    assert pauses[-1] == PAUSE_MAX_NS


def test_a_repair_ends_the_pauses_of_its_queue_alone() -> None:
    watch = SurplusWatch()
    for _ in range(2):
        watch.suspects({Q: 1, R: 1}, {}, 0)
    for queue in (Q, R):
        for _ in range(5):
            watch.read(queue, repaired=False, now_ns=0)
    watch.read(Q, repaired=True, now_ns=0)
    assert watch.suspects({Q: 1, R: 1}, {}, S) == {Q}


def test_a_queue_that_was_deleted_leaves_no_pause_behind() -> None:
    watch = SurplusWatch()
    watch.suspects({Q: 1}, {}, 0)
    for _ in range(5):
        watch.read(Q, repaired=False, now_ns=0)
    assert not watch.suspects({Q: 1}, {}, S)
    watch.suspects({R: 0}, {}, 2 * S)
    watch.suspects({Q: 1}, {}, 3 * S)
    assert watch.suspects({Q: 1}, {}, 4 * S) == {Q}


@pytest.mark.parametrize(("messages", "pause_ns"), [(100, 100 * PATIENCE_NS), (10**6, PAUSE_MAX_NS)])
def test_a_queue_from_which_messages_were_removed_has_a_pause_in_proportion_to_its_length(
    messages: int, pause_ns: int
) -> None:
    watch = SurplusWatch()
    watch.suspects({Q: 1}, {}, 0)
    for _ in range(3):
        watch.cleaned(Q, messages=messages, now_ns=0)
    assert watch.suspects({Q: 1}, {}, pause_ns - 1) == set()
    assert watch.suspects({Q: 1}, {}, pause_ns) == {Q}
