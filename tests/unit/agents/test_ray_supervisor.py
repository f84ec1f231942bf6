"""Supervisor of Ray agents, with missing, outdated, unavailable and dead actors; Ray is in memory.

`tests/e2e/test_ray.py` and `test_ray_cluster.py` show the usual way on a real Ray.
"""

import functools

import pytest

from qlm.agents.core.node_placement import Node
from qlm.agents.ray import supervisor as supervising
from qlm.agents.ray.cluster import RayUnavailableError
from qlm.agents.ray.supervisor import NoPlaceError
from support.gateway import until
from support.ray_in_memory import A10, AWAY, Actor, Cluster, Dead, Run, Unavailable, placed, spec


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "RETRY_S", 0.0)
    monkeypatch.setattr(supervising, "PLACEMENT_CHECK_S", 0.01)


async def test_stopping_drains_what_runs_and_ends_what_never_found_a_place() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"), spec("b", kind="H100"))
    first = await placed(cluster, "a")
    await until(lambda: len(cluster.actors) == 2)
    await until(lambda: first.watched)
    second = cluster.actors["b"]
    await run.stop()
    assert run.asked == ["a"]
    assert (first.stopped, second.stopped) == (False, False)
    assert {id(each) for each in cluster.killed} == {id(first), id(second)}


async def test_one_that_is_not_alive_to_be_drained_is_stopped_before_its_actor_ends() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"), drains=False)
    actor = await placed(cluster, "a")
    await until(lambda: actor.watched)
    await run.stop()
    assert (run.asked, actor.stopped, cluster.killed) == (["a"], True, [actor])


async def test_an_instance_that_an_operator_drains_stays_away() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"))
    actor = await placed(cluster, "a")
    actor.ended.set_result(None)
    await run.task
    assert (cluster.killed, cluster.made, run.asked) == ([actor], 1, [])


async def test_what_a_former_supervisor_left_is_kept_replaced_or_retired_by_its_recipe() -> None:
    cluster = Cluster(A10)
    same, other, former = Actor("now"), Actor("then"), Actor("now")
    cluster.actors = {"same": same, "other": other, "former": former}
    for actor in cluster.actors.values():
        actor.place()
    run = Run(cluster, spec("same"), spec("other"))
    await until(lambda: cluster.actors.get("other") not in (None, other))
    assert cluster.actors["same"] is same
    assert "former" not in cluster.actors
    assert {id(each) for each in cluster.killed} == {id(other), id(former)}
    assert sorted(run.asked) == ["former", "other"]
    await until(lambda: same.watched)
    await run.stop()


async def test_ray_is_left_to_restart_and_one_that_is_dead_for_good_is_made_anew() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"))
    actor = await placed(cluster, "a")
    for times in range(1, 4):
        await until(functools.partial(actor.is_watched, times))
        actor.fail(Unavailable("its process died"))
    await until(lambda: actor.watched == 4)
    assert (cluster.made, cluster.actors["a"]) == (1, actor)
    del cluster.actors["a"]
    actor.fail(Dead("killed by somebody\n\nfor good"))
    again = await placed(cluster, "a")
    assert (cluster.made, again is actor) == (2, False)
    await run.stop()


async def test_on_a_ray_of_our_own_no_place_at_all_is_an_error() -> None:
    with pytest.raises(
        NoPlaceError, match=r"^no instance fits on this machine: a: no node offers .*H100: 1; "
    ):
        await Run(Cluster(A10, own=True), spec("a", kind="H100"), spec("b", kind="H100")).task


async def test_the_end_of_a_ray_of_our_own_is_noticed() -> None:
    cluster = Cluster(A10, own=True)
    run = Run(cluster, spec("a"))
    await until(lambda: "a" in cluster.actors)
    cluster.up = []
    with pytest.raises(RayUnavailableError, match="has ended"):
        await run.task


@pytest.mark.parametrize("error", [Unavailable, Dead])
async def test_a_cluster_that_has_started_anew_is_left_with_what_was_on_it(error: type[Unavailable]) -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"))
    actor = await placed(cluster, "a")
    await until(lambda: actor.watched)
    cluster.anew = True
    actor.fail(error("its node is gone"))
    with pytest.raises(RayUnavailableError, match="started anew"):
        await run.task
    assert (cluster.killed, actor.stopped, run.asked) == ([], False, [])


async def test_a_cluster_that_has_started_anew_is_left_by_those_who_wait() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a", kind="H100"))
    await until(lambda: "a" in run.unplaced)
    cluster.anew = True
    with pytest.raises(RayUnavailableError, match="started anew"):
        await run.task


@pytest.mark.parametrize("error", [AWAY, ZeroDivisionError("a bug")])
async def test_those_who_look_at_instances_hear_of_each_that_waits(error: Exception) -> None:
    """Also after a report has failed, and no more of one that has a place."""
    cluster = Cluster(A10)
    specs = spec("a"), spec("b", kind="H100"), spec("c", kind="H200")
    run = Run(cluster, *specs, first_report=error)
    await placed(cluster, "a")
    await until(lambda: {"b", "c"} <= run.unplaced.keys())
    assert run.unplaced["b"].startswith("no node offers accelerator_type:H100: 1")
    await placed(cluster, "b")
    cluster.up = []
    await until(lambda: "no node is alive" in run.unplaced["c"])
    await until(lambda: cluster.actors["b"].watched)
    run.unplaced.clear()
    await until(lambda: run.unplaced)
    assert list(run.unplaced) == ["c"]
    await run.stop()


async def test_the_reason_of_waiting_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(A10)
    with caplog.at_level("INFO", logger="qlm.agents"):
        run = Run(cluster, spec("a", kind="H100"))
        await until(lambda: "a waits for a place: no node offers" in caplog.text)
        looked = cluster.looked
        await until(lambda: cluster.looked >= looked + 3)
        cluster.up = [*cluster.up, Node("there", {"accelerator_type:H100": 1})]
        await until(lambda: "is in use, or its process is starting" in caplog.text)
        await placed(cluster, "a")
        await until(lambda: "a: agent runs under Ray, in process 7" in caplog.text)
        await run.stop()
    assert caplog.text.count("no node offers") == 1
