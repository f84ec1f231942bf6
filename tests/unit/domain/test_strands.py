"""Strands of tasks: the same for all calls, even, and steady when their number changes."""

from collections import Counter

from qlm.domain.formats.clusters import Clusters, undivided
from qlm.domain.formats.strands import TaskName, divided_name, in_strand, strand_of, strand_of_task
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId

M = ModelId("m")
CALL = RequestClass(M, "deadline-16s", target_ms=16_000.0)
LATER = RequestClass(M, "deadline-2s", target_ms=2_000.0)
TASKS = [TaskName("tenant", f"fix-{number}") for number in range(800)]


def test_all_calls_of_a_task_are_in_one_strand_whatever_their_objective_and_length() -> None:
    clusters = Clusters(fixed={M: (2_000,)}, strands={M: 4})
    for task in TASKS[:50]:
        first, last = clusters.of(CALL, 100, task), clusters.of(LATER, 9_000, task)
        assert strand_of(first) == strand_of(last) == strand_of(last.missed())
        assert (divided_name(first.cluster)[0], divided_name(last.cluster)[0]) == ("to-2000", "over-2000")
        assert undivided(first) == CALL


def test_other_requests_and_other_models_keep_their_class() -> None:
    clusters = Clusters(strands={M: 4})
    other = RequestClass(ModelId("n"), "batch")
    assert clusters.of(CALL, 100) is CALL
    assert clusters.of(other, 100, TASKS[0]) is other
    assert strand_of(CALL) is None and strand_of(RequestClass(M, "batch", cluster="2049-8192")) is None


def test_strands_are_even_and_one_more_moves_only_its_own_share() -> None:
    before = [strand_of_task(task, 3) for task in TASKS]
    after = [strand_of_task(task, 4) for task in TASKS]
    assert all(150 < count < 250 for count in Counter(after).values()) and len(set(after)) == 4
    assert all(new in (old, 3) for old, new in zip(before, after, strict=True))


def test_equal_names_of_different_tenants_are_different_tasks() -> None:
    same = [strand_of_task(task, 8) == strand_of_task(TaskName("other", task.id), 8) for task in TASKS]
    assert 50 < sum(same) < 150, "as many as by chance"


def test_the_queue_of_a_strand_says_which_it_is() -> None:
    assert in_strand(CALL, 2).queue == "qlm.class.m.deadline-16s.all-strand-2"
    assert in_strand(CALL, 2).missed().queue == "qlm.class.m.deadline-16s.all-strand-2.late"
