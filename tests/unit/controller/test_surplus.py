"""Queues that seem to hold unknown messages: when they are read, and how soon again."""

from qlm.controller.shell.surplus import PAUSE_MAX_NS, PAUSE_NS, SurplusWatch
from qlm.domain.ids import QueueName

Q, R = QueueName("q"), QueueName("r")
S = 1_000_000_000


def test_a_surplus_counts_when_it_is_seen_twice_in_a_row() -> None:
    watch = SurplusWatch()
    assert watch.suspects({Q: 2, R: 1}, {Q: 1, R: 1}, 0) == set()
    assert watch.suspects({Q: 1, R: 2}, {Q: 1, R: 1}, 2 * S) == set()
    assert watch.suspects({Q: 2, R: 2}, {Q: 1, R: 1}, 4 * S) == {R}
    assert watch.suspects({Q: 1}, {}, 6 * S) == {Q}, "the store knows none of its requests"


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
