"""Dead letters from the queue to the operator and back, over HTTP and `qlm`, on real brokers."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from click.testing import CliRunner, Result

from qlm.broker.codec import encode_request
from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.topology import DEAD
from qlm.cli.main import main
from qlm.controller.shell.reindex import Reindexer
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.ids import InstanceId, QueueName, SessionId
from qlm.domain.lease import Holder
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import Broker
from qlm.domain.request import RequestState
from qlm.gateway.sessions.operators.dead_letters import LETTERS_MAX, RESOLVED_MAX, DeadLetterQueue
from qlm.gateway.tokenizers.served_models import ServedModels
from qlm.store.embedded.memory import MemoryStore
from simulation.injection import Failure, Injector, Site, When
from support.dead_letters import UNREADABLE, move_to_dead_letters
from support.flaky import Faults, flaky
from support.gateway import Cluster, SystemClock, running_cluster, until
from support.rabbitmq import RabbitMQ
from support.requests import a_request

STORE_AWAY = StoreUnavailableError("the store is away")
BROKER_AWAY = BrokerUnavailableError("the broker is away")


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def cluster(tmp_path: Path, faults: Faults) -> AsyncIterator[Cluster]:
    """Run a cluster whose agent rests: it would take whatever is in a queue."""
    async with running_cluster(tmp_path, flaky(MemoryStore(SystemClock()), faults)) as running:
        await until(running.agent.working.is_set)
        running.agent.working.clear()
        yield running


@pytest.fixture
async def url(cluster: Cluster, faults: Faults) -> str:
    """Address of the listener for operators."""
    return cluster.admin_urls[await cluster.gateway(broker=flaky(cluster.broker, faults))]


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20, base_url=f"{url}/admin/v1") as client:
        yield client


async def qlm(url: str, *arguments: str, answer: str | None = None) -> Result:
    """Run a command while the gateway goes on in this loop."""
    words = [*arguments, "--url", url]
    return await asyncio.to_thread(lambda: CliRunner().invoke(main, words, input=answer))


async def letters(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    answer = (await http.get("/dead")).json()
    assert answer["total"] == len(answer["letters"])
    found: list[dict[str, Any]] = answer["letters"]
    return found


async def bodies(broker: Broker, queue: QueueName) -> list[bytes]:
    return list(await broker.peek(queue, lambda body: body, 100))


async def what_an_operator_does(cluster: Cluster, broker: Broker, url: str) -> None:
    """Find an unreadable message and one of a model that nobody serves; put one back and drop the other."""
    classes, retired = QueueName("qlm.class.m.batch.all"), a_request("req-1", model="retired")
    await move_to_dead_letters(broker, retired, at_s=1000.0, reason="written by a newer version")
    await broker.publish(classes, UNREADABLE)
    read = await Reindexer(broker, cluster.store, SystemClock()).index(classes)
    assert (read.indexed, read.removed) == (0, 1)

    listed = await qlm(url, "requests", "--dead", "--json")
    unreadable, readable = orjson.loads(listed.stdout)["letters"]
    assert readable["request"]["id"] == "req-1"
    assert (readable["at_s"], readable["reason"]) == (1000.0, "written by a newer version")
    assert (unreadable["queue"], unreadable["bytes"], unreadable["request"]) == (classes, 14, None)
    assert "is not JSON" in unreadable["reason"]
    table = (await qlm(url, "requests", "--dead")).stdout
    assert "dead letters: 2 of 2" in table
    assert all(word in table for word in ("req-1", "retired", "batch", str(classes), unreadable["id"]))
    assert (await qlm(url, "requests", "--dead", "--limit", "1")).stdout.count("dead-") == 1
    assert (await qlm(url, "requests", "--dead", "--json")).stdout == listed.stdout, "looking takes nothing"

    refused = await qlm(url, "requests", "retry", unreadable["id"])
    assert refused.exit_code == 1
    assert len(refused.output.splitlines()) == 1
    assert "cannot be requeued: message" in refused.output

    done = await qlm(url, "requests", "retry", "req-1")
    assert (done.exit_code, done.output.count("no model retired is configured here")) == (0, 1)
    assert await bodies(broker, retired.cls.queue) == [encode_request(retired)]
    record = await cluster.store.record(retired.id)
    assert record is not None
    assert record.state is RequestState.QUEUED

    kept = await qlm(url, "requests", "drop", "--dead-at", "1", answer="n\n")
    assert kept.exit_code == 1
    assert f"Delete dead letter {unreadable['id']} for good?" in kept.output
    assert len(await bodies(broker, DEAD)) == 1
    dropped = await qlm(url, "requests", "drop", "--dead-at", "1", "--yes")
    assert (dropped.exit_code, dropped.output) == (0, f"{unreadable['id']}: deleted\n")
    assert await bodies(broker, DEAD) == []
    gone = await qlm(url, "requests", "retry", "--dead-at", "1")
    assert (gone.exit_code, "--dead-at is 1" in gone.output) == (1, True)


async def test_an_operator_clears_the_queue_of_a_file(cluster: Cluster, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        file = await SqliteFile.open(tmp_path / "dead.sqlite")
        stack.push_async_callback(file.close)
        queues = await SqliteQueues.open(file)
        stack.push_async_callback(queues.close)
        ours, theirs = queues.broker(), queues.broker()
        await what_an_operator_does(cluster, ours, cluster.admin_urls[await cluster.gateway(broker=theirs)])
        await theirs.close()
        assert await bodies(ours, DEAD) == [], "what was settled does not come back"


async def test_an_operator_clears_the_queue_of_rabbitmq(cluster: Cluster, rabbitmq: RabbitMQ) -> None:
    settings = RabbitSettings(url=rabbitmq.url)
    async with contextlib.AsyncExitStack() as stack:
        ours = await RabbitBroker.connect(settings, random.Random(1))
        stack.push_async_callback(ours.close)
        theirs = await RabbitBroker.connect(settings, random.Random(2))
        stack.push_async_callback(theirs.close)
        for delivery in await ours.get(DEAD, 1000):
            await ours.ack(delivery)
        await what_an_operator_does(cluster, ours, cluster.admin_urls[await cluster.gateway(broker=theirs)])


async def test_the_newest_come_first_and_stay(cluster: Cluster, http: httpx.AsyncClient) -> None:
    for n in range(4):
        await move_to_dead_letters(cluster.broker, a_request(f"r{n}"), at_s=1000.0 + n)
    before = await bodies(cluster.broker, DEAD)
    answer = (await http.get("/dead", params={"limit": 2})).json()
    assert [each["request"]["id"] for each in answer["letters"]] == ["r3", "r2"]
    assert answer["total"] == 4
    assert await bodies(cluster.broker, DEAD) == before


@pytest.mark.parametrize("limit", ["0", "x", str(LETTERS_MAX + 1)])
async def test_a_bad_limit_is_refused(http: httpx.AsyncClient, limit: str) -> None:
    answer = await http.get("/dead", params={"limit": limit})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith(f"expected a number from 1 to {LETTERS_MAX}")


async def test_what_is_no_dead_letter_is_shown_and_can_be_deleted(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    await cluster.broker.publish(DEAD, b"\xff\x00")
    (letter,) = await letters(http)
    assert (letter["at_s"], letter["queue"], letter["bytes"]) == (None, None, 2)
    assert (
        "qlm.class"
        not in (await qlm(str(http.base_url).removesuffix("/admin/v1/"), "requests", "--dead")).output
    )
    assert (await http.post(f"/dead/{letter['id']}/retry")).json()["error"]["code"] == "letter_unreadable"
    assert (await http.delete(f"/dead/{letter['id']}")).json()["settled"][0]["result"] == "deleted"
    assert await letters(http) == []


async def test_what_runs_or_has_ended_is_only_removed(cluster: Cluster, http: httpx.AsyncClient) -> None:
    holder = Holder(InstanceId("gpu-7"), SessionId("s"))
    running, ended = a_request("running"), a_request("ended")
    await cluster.store.lease(running.metadata(), holder, None)
    await cluster.store.enqueue(ended.metadata())
    await cluster.store.cancel(ended.id)
    for request, why in ((running, "runs on gpu-7"), (ended, "has ended: cancelled")):
        await move_to_dead_letters(cluster.broker, request)
        (settled,) = (await http.post(f"/dead/chatcmpl-{request.id}/retry")).json()["settled"]
        assert settled["result"] == "removed"
        assert settled["why"].endswith(why)
        assert await cluster.broker.depth(request.cls.queue) == 0
    assert await letters(http) == []


async def test_a_request_with_two_letters_is_put_back_once(cluster: Cluster, http: httpx.AsyncClient) -> None:
    request = a_request("twice")
    await move_to_dead_letters(cluster.broker, request, at_s=1.0)
    await move_to_dead_letters(cluster.broker, a_request("other"))
    await move_to_dead_letters(cluster.broker, request, at_s=2.0)
    settled = (await http.post("/dead/twice/retry")).json()["settled"]
    assert [each["result"] for each in settled] == ["queued", "removed"]
    assert await cluster.broker.depth(request.cls.queue) == 1
    assert [each["request"]["id"] for each in await letters(http)] == ["other"]


async def test_a_deleted_message_ends_the_request_that_waited_for_it(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    request = a_request("waits")
    await cluster.store.enqueue(request.metadata())
    await move_to_dead_letters(cluster.broker, request)
    (settled,) = (await http.delete("/dead/waits")).json()["settled"]
    assert settled["why"] == "request waits is cancelled"
    record = await cluster.store.record(request.id)
    assert record is not None
    assert record.outcome is Outcome.CANCELLED


async def test_an_unknown_letter_is_not_found(cluster: Cluster, url: str, http: httpx.AsyncClient) -> None:
    await move_to_dead_letters(cluster.broker, UNREADABLE)
    for answer in (await http.post("/dead/dead-0/retry"), await http.delete("/dead/dead-0")):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "letter_not_found"
    done = await qlm(url, "requests", "retry", "dead-0")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "no dead letter dead-0" in done.output
    assert len(await letters(http)) == 1


async def test_what_cannot_be_settled_now_stays(
    cluster: Cluster, http: httpx.AsyncClient, faults: Faults
) -> None:
    await move_to_dead_letters(cluster.broker, a_request("r1"))
    before = await bodies(cluster.broker, DEAD)
    for error, method in ((STORE_AWAY, "record"), (STORE_AWAY, "enqueue"), (BROKER_AWAY, "publish")):
        faults.fail(error, method)
        answer = await http.post("/dead/r1/retry")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert faults.raised[method] == 1
        assert await bodies(cluster.broker, DEAD) == before
        faults.heal()
    assert (await http.post("/dead/r1/retry")).json()["settled"][0]["result"] == "queued"
    assert await letters(http) == []


async def test_a_bug_with_one_letter_keeps_no_other(cluster: Cluster, faults: Faults) -> None:
    for n in range(3):
        await move_to_dead_letters(cluster.broker, a_request(f"r{n}"))
    faults.fail(STORE_AWAY, "record")  # so that all are returned
    bug = Injector(Failure(Site("gateway", "broker", "requeue"), ZeroDivisionError, When.BEFORE, 0, 1))
    broker = bug.wrap("gateway", "broker", cluster.broker)
    with pytest.raises(ZeroDivisionError):
        await DeadLetterQueue(broker, cluster.store, ServedModels([])).retry(lambda body: True)
    assert await cluster.broker.depth(DEAD) == 2


async def test_without_a_broker_each_call_says_so(url: str, http: httpx.AsyncClient, faults: Faults) -> None:
    faults.fail(BROKER_AWAY, "peek", "pick", "depth")
    for answer in (
        await http.get("/dead"),
        await http.post("/dead/x/retry"),
        await http.post("/dead/retry"),
        await http.delete("/dead/x"),
        await http.delete("/dead"),
    ):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "broker_unavailable"
    done = await qlm(url, "requests", "--dead")
    assert (done.exit_code, done.output.startswith("qlm: the global queue is not available")) == (1, True)
    assert "qlm_gateway_dead_letters NaN" in (await http.get(f"{url}/metrics")).text


async def test_all_are_put_back_but_what_cannot_be_read(
    cluster: Cluster, url: str, http: httpx.AsyncClient
) -> None:
    count = RESOLVED_MAX + 3
    await move_to_dead_letters(cluster.broker, UNREADABLE)
    for n in range(count):
        await move_to_dead_letters(cluster.broker, a_request(f"r{n}"))
    assert f"qlm_gateway_dead_letters {count + 1}.0" in (await http.get(f"{url}/metrics")).text
    done = await qlm(url, "requests", "retry", "--all")
    assert (done.exit_code, done.output.splitlines()[0]) == (0, f"{count} put back; 1 left")
    assert await cluster.broker.depth(a_request().cls.queue) == count
    assert [each["request"] for each in await letters(http)] == [None]
    again = await qlm(url, "requests", "retry", "--all", "--json")
    assert orjson.loads(again.stdout) == {"queued": 0, "removed": 0, "deleted": 0, "left": 1}
    asked = await qlm(url, "requests", "retry", "--all", "--drop", answer="y\n")
    assert "Delete all 1 dead letters for good?" in asked.output
    assert asked.output.endswith("1 deleted; 0 left\n")
    nothing = await qlm(url, "requests", "retry", "--all", "--drop")
    assert (nothing.exit_code, nothing.output) == (0, "nothing to do; 0 left\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("retry",), "expected one of ID, --all and --dead-at"),
        (("retry", "x", "--all"), "expected one of ID, --all and --dead-at"),
        (("retry", "--dead-at", "0"), "0 is not in the range"),
        (("--dead", "req-1"), "expected no REQUEST_ID"),
        (("--dead", "--state", "ended"), "expected no REQUEST_ID"),
    ],
)
async def test_options_that_do_not_go_together_are_refused(words: tuple[str, ...], said: str) -> None:
    done = await qlm("http://127.0.0.1:9", "requests", *words)
    assert done.exit_code == 2
    assert said in done.output
