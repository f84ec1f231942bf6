"""Failures of every kind at every call that a batch and its webhook make: each costs at most one line."""

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson
import pytest

from qlm.domain.ports.outbox import OutboxState
from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.batches import batch_run, line_run, runner
from qlm.gateway.batches.runner import batches_running
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.files.line_routes import LINE_ROUTES
from qlm.gateway.sessions.gateway import create_gateway
from qlm.gateway.webhooks import dispatcher
from qlm.gateway.webhooks.dispatcher import Dispatcher
from qlm.gateway.webhooks.sender import Sender
from simulation.injection import Failure, Injector, Site, When, errors_of
from support.failing_storage import failing_storage
from support.gateway import SystemClock, running_cluster, until
from support.port_operations import OF_BATCHES
from support.stored_batches import add_batch
from support.webhook_world import replace_limits, webhooks
from support.webhooks import Receiver, receiving

SEED: Final = 1
ENDPOINT: Final = "/v1/completions"
LINES: Final = [str(n) for n in range(3)]
BODY: Final = {"model": "emulated", "prompt": "x", "max_tokens": 2}
CONTENT: Final = b"".join(
    orjson.dumps({"custom_id": n, "method": "POST", "url": ENDPOINT, "body": BODY}) + b"\n" for n in LINES
)
PORTS: Final = ("store", "broker", "storage")


@contextlib.contextmanager
def short_pauses() -> Iterator[None]:
    """Try again soon what failed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "RETRY_S", 0.02)
        patch.setattr(batch_run, "RENEW_S", 0.0)
        patch.setattr(line_run, "PAUSE_MAX_S", 0.02)
        patch.setattr(dispatcher, "CLAIM_S", 0.0)
        yield


async def run_batch(injector: Injector) -> tuple[Counter[str], Counter[str]]:
    """Run a batch to its end, reported by a webhook; return its lines with an answer and those without."""
    folder = Path(tempfile.mkdtemp())
    try:
        with short_pauses():
            async with receiving() as receiver:
                return await _run_batch(injector, folder, receiver)
    finally:
        # A thread of the storage may be at its last deletion, whose caller has been cancelled.
        shutil.rmtree(folder, ignore_errors=True)


async def _run_batch(
    injector: Injector, folder: Path, receiver: Receiver
) -> tuple[Counter[str], Counter[str]]:
    plain = storage_in(folder / "files", SystemClock())
    pace = replace(plain.pace, scan_s=0.02, look_s=0.02, rest_s=0.02)
    storage = failing_storage(replace(plain, pace=pace), injector)
    async with running_cluster(folder) as cluster:
        gateway = create_gateway(
            cluster.parts(
                broker=injector.wrap("gateway", "broker", cluster.broker),
                store=injector.wrap("gateway", "store", cluster.store),
                storage=storage,
                webhooks=webhooks(receiver.url, limits=replace_limits(timeout_s=1)),
            )
        )
        async with gateway.running(), batches_running(gateway, LINE_ROUTES), _notifying(gateway):
            spec, _ = add_batch(plain, CONTENT, endpoint=ENDPOINT)
            await until(lambda: receiver.ids_of("batch.completed"))
            await until(lambda: plain.batches.open_places() == {})

            async def all_sent() -> bool:
                return await cluster.store.outbox_state() == OutboxState(0, 0)

            await until(all_sent)
    assert set(receiver.ids_of("batch.completed")) == {spec.id}
    batch = plain.batches.find(spec.id)
    assert batch is not None
    files = batch.state.output_file_id, batch.state.error_file_id
    output, errors = (Counter[str]() if id is None else _lines(plain, spec.tenant, id) for id in files)
    return output, errors


@contextlib.asynccontextmanager
async def _notifying(gateway: Any) -> AsyncIterator[None]:
    sender = Sender(gateway.webhooks, gateway.clock)
    task = asyncio.create_task(Dispatcher(gateway, gateway.webhooks, sender, look_s=0.02).run())
    try:
        yield
    finally:
        await end_tasks([task])
        await sender.close()


def _lines(storage: Storage, tenant: str, id: str) -> Counter[str]:
    with storage.files.open(tenant, id) as file:
        return Counter(orjson.loads(line)["custom_id"] for line in file)


def failures(calls: Counter[Site], port: str, when: When) -> Iterator[Failure]:
    """Yield one failure of each kind at one early call of each operation of a port."""
    for site, count in sorted(calls.items()):
        for error in errors_of(site) if site.port == port else ():
            first = Random(f"{SEED} {site} {error.__name__} {when}").randrange(min(count, 3))
            yield Failure(site, error, when, first, count=1)


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("port", PORTS)
async def test_a_failed_call_costs_at_most_its_own_line(port: str, when: When) -> None:
    undisturbed = Injector()
    assert await run_batch(undisturbed) == (Counter(LINES), Counter())
    assert {site.operation for site in undisturbed.calls if site.port == port} >= OF_BATCHES.get(port, set())
    tried = list(failures(undisturbed.calls, port, when))
    assert tried
    hits = 0
    for failure in tried:
        injector = Injector(failure)
        output, errors = await run_batch(injector)
        hits += injector.hits
        assert output + errors == Counter(LINES), failure
        assert len(errors) <= injector.hits, failure
    assert hits > len(tried) * 0.8, "few of the calls were made again"
