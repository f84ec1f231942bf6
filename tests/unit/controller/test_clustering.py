"""Clusters over time: found within few requests, steady afterwards, and given up when they are of no use."""

from collections import Counter
from dataclasses import replace

import numpy as np

from qlm.controller.core.clustering import (
    CHECK_NS,
    HOLD_NS,
    NOTHING_COUNTED,
    ClusterState,
    update_clusters,
    with_published,
)
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.controller.core.fleet import Fleet
from qlm.domain.formats.clusters import NO_CLUSTERS, Clusters, clusters_from_plain, clusters_to_plain
from qlm.domain.group import RequestClass
from qlm.domain.length_histogram import LENGTH_BINS, LENGTH_EDGES, NO_LENGTHS, length_bin
from qlm.domain.view import ClassView, ClusterView
from qlm.planner.problem import Kind
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from support.estimating import CHAT, COST, KIND, M, S, class_view, instance

FLEET = Fleet(
    kinds={KIND: Kind(host_memory_bytes=10, models={M: COST})},
    profiles={(M, KIND): find_profile(builtin_profiles(), "mistral-7b", "A10")},
)
LONG_AFTER = 2000
"""Requests within which a hundredth of long ones is divided off."""


class Traffic:
    """Requests in the classes that the clusters of a controller give them, and the counts that it reads."""

    def __init__(self, seed: int, state: ClusterState = NOTHING_COUNTED) -> None:
        self.state = state
        self.changes = 0
        self.now_ns = 1_000 * S
        self._rng = np.random.default_rng(seed)
        self._counts: dict[RequestClass, Counter[int]] = {}
        self._estimator = NOTHING_LEARNED

    @property
    def clusters(self) -> Clusters:
        return self.state.clusters

    def arrive(
        self, requests: int, *, long: float = 0.0, tokens: float = 30_000.0, median: float = 300.0
    ) -> None:
        """Let requests come, a share `long` of them with about `tokens`, and the controller read."""
        drawn = self._rng.lognormal(np.log(median), 0.8, requests)
        is_long = self._rng.random(requests) < long
        drawn[is_long] = tokens * self._rng.lognormal(0, 0.1, int(is_long.sum()))
        counts, _ = np.histogram(np.ceil(drawn.clip(1, 100_000)) - 0.5, LENGTH_EDGES)
        for at in np.flatnonzero(counts).tolist():
            cls = self.clusters.of(CHAT, LENGTH_EDGES[at + 1])
            self._counts.setdefault(cls, Counter())[at] += int(counts[at])
        self.now_ns += CHECK_NS
        before = self.clusters
        self.state = self._updated()
        self.changes += self.clusters != before

    def empty_store(self) -> None:
        """Lose all counts."""
        self._counts.clear()

    def _updated(self, automatic: bool = True) -> ClusterState:
        classes = tuple(_view(cls, counts) for cls, counts in self._counts.items())
        view = ClusterView(classes=classes, instances=(instance(),), queues=())
        self._estimator = learn(self._estimator, view, now_ns=self.now_ns, fleet=FLEET)
        return update_clusters(
            self.state, view, self._estimator, now_ns=self.now_ns, automatic=automatic, fixed={}
        )


def _view(cls: RequestClass, counts: Counter[int]) -> ClassView:
    prompts = tuple(counts[at] for at in range(LENGTH_BINS))
    view = class_view(cls, NO_LENGTHS, ungrouped=1)
    return replace(view, prompts=prompts, accepted=sum(prompts), mean_prompt_tokens=300.0)


def divided(seed: int = 1) -> Traffic:
    """Traffic whose long prompts have been divided off."""
    traffic = Traffic(seed)
    traffic.arrive(2000, long=0.02)
    assert traffic.clusters.found
    return traffic


def test_lengths_of_one_kind_stay_one_cluster_while_they_come() -> None:
    for seed in range(20):
        traffic = Traffic(seed)
        for _ in range(40):
            traffic.arrive(50)
        assert traffic.clusters == NO_CLUSTERS


def test_long_prompts_are_found_within_few_requests_and_stay_apart() -> None:
    for seed in range(5):
        traffic = Traffic(seed)
        while not traffic.clusters.found:
            traffic.arrive(100, long=0.01)
            assert traffic.now_ns <= (1_000 + 10 * LONG_AFTER // 100) * S
        ((cls, (threshold,)),) = traffic.clusters.found.items()
        assert cls == CHAT and 2000 < threshold < 25_000
        for _ in range(60):
            traffic.arrive(100, long=0.01)
        assert traffic.changes == 1
        names = {traffic.clusters.of(CHAT, tokens).cluster for tokens in (10, 500, 30_000)}
        assert names == {f"to-{threshold}", f"over-{threshold}"}


def test_lengths_that_drift_do_not_change_the_clusters_to_and_fro() -> None:
    traffic = Traffic(3)
    for step in range(300):  # ordinary prompts triple, long ones shrink by half, in waves
        wave = 0.5 - 0.5 * np.cos(step / 20)
        traffic.arrive(
            100, long=0.05 * (1 - 0.9 * wave), tokens=40_000 / (1 + wave), median=200 * (1 + 2 * wave)
        )
    assert traffic.changes <= 2


def test_a_division_of_no_more_use_is_given_up_after_a_while() -> None:
    traffic = divided()
    began_ns = traffic.now_ns
    while traffic.clusters.found:
        traffic.arrive(500)
        assert traffic.now_ns < began_ns + 4 * HOLD_NS
    assert traffic.now_ns >= began_ns + HOLD_NS
    assert traffic.clusters.of(CHAT, 30_000) == CHAT


def test_a_pause_of_long_prompts_changes_nothing() -> None:
    traffic = divided()
    before = traffic.clusters
    for _ in range(HOLD_NS // CHECK_NS // 2):
        traffic.arrive(50)
    traffic.arrive(500, long=0.02)
    assert traffic.clusters == before


def test_a_controller_that_takes_over_keeps_the_thresholds() -> None:
    before = divided().clusters
    published = clusters_from_plain(clusters_to_plain(before))
    after = Traffic(7, with_published(NOTHING_COUNTED, published))
    assert after.clusters == before
    for _ in range(10):
        after.arrive(50, long=0.02)
    assert after.clusters == before


def test_an_emptied_store_changes_nothing() -> None:
    traffic = divided()
    before = traffic.clusters
    traffic.empty_store()
    for _ in range(10):
        traffic.arrive(50, long=0.02)
    assert traffic.clusters == before


def test_demoted_requests_count_once() -> None:
    traffic = divided()
    late = _view(CHAT.missed(), Counter({length_bin(30_000): 10_000}))
    estimator = learn(
        NOTHING_LEARNED,
        view := ClusterView(classes=(late,), instances=(instance(),), queues=()),
        now_ns=0,
        fleet=FLEET,
    )
    state = update_clusters(NOTHING_COUNTED, view, estimator, now_ns=traffic.now_ns, automatic=True, fixed={})
    assert not state.counts


def test_fixed_thresholds_hold_and_nothing_is_found_beside_them() -> None:
    fixed = {M: (8000,)}
    for automatic in (True, False):
        traffic = divided()
        view = ClusterView(classes=(), instances=(), queues=())
        state = update_clusters(
            traffic.state,
            view,
            NOTHING_LEARNED,
            now_ns=traffic.now_ns + CHECK_NS,
            automatic=automatic,
            fixed=fixed,
        )
        assert state.clusters == Clusters(fixed=fixed)
        assert state.clusters.of(CHAT, 8000).cluster == "to-8000"
        assert state.clusters.of(CHAT, 8001).cluster == "over-8000"


def test_clusters_are_given_up_at_once_where_they_are_switched_off() -> None:
    traffic = divided()
    traffic.now_ns += CHECK_NS
    assert traffic._updated(automatic=False).clusters == NO_CLUSTERS
