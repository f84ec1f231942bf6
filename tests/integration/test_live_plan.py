"""`qlm plan show` and `qlm plan explain` on the live state: a gateway, a controller and an agent at work."""

import asyncio
import json
import re
import time
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from qlm.cli.main import main
from qlm.controller.core.problem import accelerator_of
from qlm.domain.formats.clusters import CLUSTERS, Clusters
from qlm.domain.ports.published import PublishedKind
from qlm.planner.problem import Plan
from qlm.planner.published_plan import PublishedPlan, published_plan_to_plain
from support.flaky import until
from support.gateway import running_cluster
from support.live import living, running, some_requests
from support.plans import random_plan, random_problem
from support.plant import M
from support.ports import free_port
from support.requests import a_request


async def qlm(url: str, *arguments: str) -> Result:
    """Run `qlm plan ...` against a gateway."""
    return await asyncio.to_thread(CliRunner().invoke, main, ["plan", *arguments, "--url", url])


async def test_the_live_plan_is_drawn_and_checked(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        await running(live, 10)
        shown = await qlm(live.url, "show")
        assert (shown.exit_code, shown.stderr) == (0, "")
        assert re.match(r"plan by edf of \S+ ago; its times count from then\n", shown.stdout)
        kept = await live.kept()
        assert kept is not None
        for group in kept.problem.groups:
            assert re.search(rf"^1\t{group.id}\tm\t6\t", shown.stdout, re.MULTILINE)
        assert "violated" not in shown.stdout
        reported = json.loads((await qlm(live.url, "show", "--json", "--samples", "50")).stdout)
        assert [row["requests"] for row in reported["rows"]] == [6]
        assert reported["sampled"]["samples"] == 50
        assert abs(reported["at_ms"] / 1000 - time.time()) < 60
        assert (await qlm(live.url, "show", "--why")).stdout.splitlines()[
            -1
        ] == "no group is expected to miss its deadline"
        assert reported["clusters"] == []
        refused = await qlm(live.url, "show", "--instance", "nobody")
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr == "qlm: --instance is 'nobody'; expected an instance of the problem\n"


async def test_one_more_instance_is_planned_for_what_waits(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        await running(live, 10)
        done = await qlm(live.url, "show", "--scale-up", "--json")
        assert (done.exit_code, done.stderr) == (0, "")
        asked = json.loads(done.stdout)["scale_up"]
        (more,) = asked["one_more"]
        kept = await live.kept()
        assert kept is not None
        assert [accelerator_of(each.kind) for each in kept.problem.instances] == [more["kind"]]
        assert asked["present"]["last_answer_s"] >= more["last_answer_s"]
        assert (asked["present"]["unplaceable_requests"], asked["fewest"]) == (0, [])
        text = (await qlm(live.url, "show", "--scale-up")).stdout
        assert f"\n1 more of {more['kind']}\t100.0 %\t0.0\t0 s\t" in text
        assert text.splitlines()[-1] == "no request is expected to be late"


async def test_a_waiting_request_is_explained(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        await running(live, 10)
        await live.plant.accept(*some_requests(3, model="n", priority=1))
        await until(lambda: live.plans(9))
        reported = await qlm(live.url, "explain", "n1")
        assert (reported.exit_code, reported.stderr) == (0, "")
        lines = reported.stdout.splitlines()
        assert re.fullmatch(r"n1: n, arrived \S+ ago, deadline in \S+, priority 1", lines[0])
        waits = r"it waits: number 2 of 3 in qlm\.class\.n\.\S+, number 2 of 3 in group (g-\S+)"
        match = re.fullmatch(rf"{waits}, on the queue of i", lines[1])
        assert match is not None, lines[1]
        assert lines[3].startswith("for the plan number 2 of 3 of its group; its turn comes in ")
        assert re.search(r"; deadline in \S+: in time with \d+\.\d %$", lines[3])
        assert "place 2 on i: waits for" in lines
        (before,) = [line for line in lines if line.startswith("- the group before its own ended")]
        assert "6 requests" in before
        assert "- the 1 request before it in its group ended: there, the order is by arrival" in lines
        assert "- another instance served n: i is the only one" in lines
        group = await qlm(live.url, "explain", match[1])
        assert group.exit_code == 0
        assert group.stdout.splitlines()[1].startswith(f"{match[1]}: n, 3 requests, deadline in ")
        data = json.loads((await qlm(live.url, "explain", "n1", "--json")).stdout)
        assert data["request"]["waits"]["group"] == match[1]
        assert (data["place"]["nth"], data["plan"]["method"]) == (2, "edf")
        assert 0 < data["place"]["turn"]["starts"]["mean"] < data["place"]["turn"]["answered"]["mean"]


async def test_a_request_is_reported_until_its_end(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        await running(live, 5)
        text = (await qlm(live.url, "explain", "m0")).stdout
        assert re.search(r"^it runs on i, begun \S+ ago; 0 tokens so far$", text, re.MULTILINE)
        assert "it waits: number 1 of 1 in " in (await qlm(live.url, "explain", "m4")).stdout
        for engine in live.plant.engines.values():
            engine.tokens_max = 1_000_000
        await live.plant.all_end_exactly_once()
        text = (await qlm(live.url, "explain", "m4")).stdout
        assert re.search(r"^it is answered: finished \S+ ago by i \(length, 8 tokens\)$", text, re.MULTILINE)


async def test_a_name_that_nobody_knows_gets_one_clear_line(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        await until(lambda: live.plans(0))
        for name in ("nobody", "a name/with ?all sorts\n", "../queues"):
            refused = await qlm(live.url, "explain", name)
            assert (refused.exit_code, refused.stdout) == (2, "")
            expected = r"expected a group with waiting requests \(plan by edf of \S+ ago\), or the id of "
            assert re.fullmatch(
                rf"qlm: GROUP_OR_REQUEST is {re.escape(repr(name))}; {expected}a known request\n",
                refused.stderr,
            )


async def test_a_gateway_whose_plan_is_of_no_use_gets_one_clear_line(tmp_path: Path) -> None:
    """Nobody plans here."""
    async with running_cluster(tmp_path) as cluster:
        cluster.agent.working.clear()
        store, url = cluster.store, cluster.admin_urls[await cluster.gateway()]
        await store.enqueue(a_request("r").metadata())
        reported = await qlm(url, "explain", "r")
        assert reported.exit_code == 0
        assert reported.stdout.splitlines()[-1] == "there is no plan yet: is a controller running?"
        refused = [(await qlm(url, "show"), "there is no plan yet: ")]
        refused += [(await qlm(url, "explain", "x"), "GROUP_OR_REQUEST is 'x'; expected ")]
        problem = random_problem(4)
        good = published_plan_to_plain(PublishedPlan(at_ms=1, problem=problem, plan=random_plan(problem, 1)))
        bad = published_plan_to_plain(PublishedPlan(at_ms=1, problem=problem, plan=Plan(queues={})))
        await store.publish(PublishedKind.PLAN, orjson.dumps(good | {"version": 7}))
        unread = "the plan of the gateway cannot be read: kept plan.version is 7; expected 1"
        refused += [(await qlm(url, *command), unread) for command in (["show"], ["explain", "g0"])]
        await store.publish(PublishedKind.PLAN, orjson.dumps(bad))
        why = "the live plan cannot be explained: violated: each_group_once: g0 is placed nowhere"
        refused += [(await qlm(url, "explain", "g0"), why)]
        for result, message in refused:
            assert (result.stdout, len(result.stderr.splitlines())) == ("", 1)
            assert result.stderr.startswith(f"qlm: {message}")
        assert [result.exit_code for result, _ in refused] == [1, 2, 1, 1, 1]
        shown = await qlm(url, "show")
        assert (shown.exit_code, "violated: each_group_once" in shown.stdout) == (1, True)
        assert "; no newer plan has arrived: is a controller running?" in shown.stdout
        clusters = Clusters(fixed={M: (8000,)})
        await store.publish(PublishedKind.CLUSTERS, CLUSTERS.encode(clusters))
        line = "prompts of m, all objectives, are divided by tokens: to-8000, over-8000"

        async def divided() -> bool:
            return line in (await qlm(url, "show")).stdout.splitlines()

        await until(divided)


@pytest.mark.parametrize("command", [["show"], ["explain", "x"]])
def test_a_gateway_that_is_not_there_is_named(command: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    refused = CliRunner().invoke(main, ["plan", *command, "--url", url])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"qlm: no QLM gateway answers at {url} (")
