"""`qlm plan show --why` counts what is late already: no plan does."""

import asyncio
from pathlib import Path

import httpx

from qlm.cli.inspect.admin_client import AdminClient
from qlm.cli.plans.live import late_already
from support.gateway import running_cluster


async def test_requests_that_wait_and_are_late_are_counted_by_state(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.agent.rest()
        url = await cluster.gateway()
        operators = AdminClient(cluster.admin_urls[url])
        assert await asyncio.to_thread(late_already, operators) is None
        body = {"model": "emulated", "prompt": "Hi", "slo": {"deadline_ms": 0.01}}
        async with httpx.AsyncClient(timeout=20) as http:
            for _ in range(2):
                sent = await http.post(
                    f"{url}/v1/completions", json=body, headers={"prefer": "respond-async"}
                )
                assert sent.status_code == 202
        said = await asyncio.to_thread(late_already, operators)
        assert said == "late, and so without a deadline in the plan: 2 wait (`qlm requests --late`)"
