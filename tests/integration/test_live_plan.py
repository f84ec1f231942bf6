"""`qlm plan show` and `qlm plan explain` on the live state: a gateway, a controller and an agent at work."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from qlm.cli.main import main
from qlm.cli.runtime.clock import SystemClock
from qlm.domain.fleet import ModelSpec
from qlm.domain.formats.clusters import CLUSTERS, Clusters
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import Request
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.http.app import admin_app_of, create_app
from qlm.gateway.http.server import create_server
from qlm.planner.problem import Plan
from qlm.planner.published_plan import PublishedPlan, published_plan_from_plain, published_plan_to_plain
from support.flaky import until
from support.gateway import running_cluster, serving
from support.plans import random_plan, random_problem
from support.plant import M, N, Plant, plant
from support.ports import free_port
from support.requests import a_request

SPECS = tuple(ModelSpec(id=model, tokenizer="byte", context_tokens=4096) for model in (M, N))


async def qlm(url: str, *arguments: str) -> Result:
    """Run `qlm plan ...` against a gateway."""
    return await asyncio.to_thread(CliRunner().invoke, main, ["plan", *arguments, "--url", url])


@dataclass(slots=True)
class Live:
    """A plant with a gateway that serves operators at `url`."""

    plant: Plant
    url: str

    async def qlm(self, *arguments: str) -> Result:
        return await qlm(self.url, *arguments)

    async def kept(self) -> PublishedPlan | None:
        data = await self.plant.store.published(PublishedKind.PLAN)
        return None if data is None else published_plan_from_plain(orjson.loads(data))

    async def plans(self, requests: int) -> bool:
        """Whether the kept plan has so many requests."""
        kept = await self.kept()
        return kept is not None and sum(group.requests for group in kept.problem.groups) == requests


@contextlib.asynccontextmanager
async def living(folder: Path) -> AsyncIterator[Live]:
    """The engines make no token until they are let: four requests run, the rest waits."""
    async with plant(folder) as made, contextlib.AsyncExitStack() as stack:
        for engine in made.engines.values():
            engine.tokens_max = 0
        app = create_app(
            SPECS,
            made.broker,
            made.store,
            SystemClock(),
            GatewayLimits(),
            GatewayId("gateway"),
            lambda: RequestId("unused"),
        )
        await stack.enter_async_context(app.router.lifespan_context(app))
        admin = create_server(admin_app_of(app.state.gateway), "127.0.0.1", 0, shutdown_s=1)
        yield Live(made, await stack.enter_async_context(serving(admin)))


def some_requests(number: int, **more: object) -> list[Request]:
    """Requests of one class, a microsecond apart."""
    now_ns = time.time_ns()
    return [
        a_request(f"{more.get('model', 'm')}{n}", deadline_ms=100_000, arrival_ns=now_ns + 1000 * n, **more)  # type: ignore[arg-type]
        for n in range(number)
    ]


async def running(live: Live, number: int) -> None:
    """Fill the engine of m, and wait until the plan knows the rest."""
    await live.plant.accept(*some_requests(number))
    await until(lambda: len(live.plant.engines[M].running) == 4)
    await until(lambda: live.plans(number - 4))


async def test_the_live_plan_is_drawn_and_checked(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        await running(live, 10)
        shown = await live.qlm("show")
        assert (shown.exit_code, shown.stderr) == (0, "")
        assert re.match(r"plan by edf of \S+ ago; its times count from then\n", shown.stdout)
        kept = await live.kept()
        assert kept is not None
        for group in kept.problem.groups:
            assert re.search(rf"^1\t{group.id}\tm\t6\t", shown.stdout, re.MULTILINE)
        assert "violated" not in shown.stdout
        reported = json.loads((await live.qlm("show", "--json", "--samples", "50")).stdout)
        assert [row["requests"] for row in reported["rows"]] == [6]
        assert reported["sampled"]["samples"] == 50
        assert abs(reported["at_ms"] / 1000 - time.time()) < 60
        assert (await live.qlm("show", "--why")).stdout.splitlines()[
            -1
        ] == "no group is expected to miss its deadline"
        assert reported["clusters"] == []
        refused = await live.qlm("show", "--instance", "nobody")
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr == "qlm: --instance is 'nobody'; expected an instance of the problem\n"


async def test_a_waiting_request_is_explained(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        await running(live, 10)
        await live.plant.accept(*some_requests(3, model="n", priority=1))
        await until(lambda: live.plans(9))
        reported = await live.qlm("explain", "n1")
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
        group = await live.qlm("explain", match[1])
        assert group.exit_code == 0
        assert group.stdout.splitlines()[1].startswith(f"{match[1]}: n, 3 requests, deadline in ")
        data = json.loads((await live.qlm("explain", "n1", "--json")).stdout)
        assert data["request"]["waits"]["group"] == match[1]
        assert (data["place"]["nth"], data["plan"]["method"]) == (2, "edf")
        assert 0 < data["place"]["turn"]["starts"]["mean"] < data["place"]["turn"]["answered"]["mean"]


async def test_a_request_is_reported_until_its_end(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        await running(live, 5)
        text = (await live.qlm("explain", "m0")).stdout
        assert re.search(r"^it runs on i since \S+ ago; 0 tokens so far$", text, re.MULTILINE)
        assert "it waits: number 1 of 1 in " in (await live.qlm("explain", "m4")).stdout
        for engine in live.plant.engines.values():
            engine.tokens_max = 1_000_000
        await live.plant.all_end_exactly_once()
        text = (await live.qlm("explain", "m4")).stdout
        assert re.search(r"^it is answered: finished \S+ ago by i \(length, 8 tokens\)$", text, re.MULTILINE)


async def test_a_name_that_nobody_knows_gets_one_clear_line(tmp_path: Path) -> None:
    async with living(tmp_path) as live:
        await until(lambda: live.plans(0))
        for name in ("nobody", "a name/with ?all sorts\n", "../queues"):
            refused = await live.qlm("explain", name)
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
