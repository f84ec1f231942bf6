"""Which blocks a real vLLM drops from host memory, and which the engine model drops."""

import random
import subprocess
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from qlm.agents.engines.scheduler_path import scheduler_path
from qlm.agents.vllm_offloading.settings import offloading
from qlm.simulator.engine.host_cache import HostCache
from support import vllm_cpu
from support.needs import need

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

BLOCKS: Final = 40

PROGRAM: Final = """
import json, sys
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

def dropped(changes):
    manager = CPUOffloadingManager(
        num_chunks=given["blocks"], cache_policy=given["policy"], cache_policy_module_path=given["module"]
    )
    requests, found = {}, []
    for kind, request, blocks in changes:
        if request not in requests:
            requests[request] = ReqContext(req_id=str(request))
            manager.on_new_request(requests[request])
        context = requests[request]
        keys = [make_offload_key(block.to_bytes(8, "big"), 0) for block in blocks]
        for key, block in zip(keys, blocks):
            context.set_offload_key_position(key, block)
        if kind == "store":
            evicted = manager.prepare_store(keys, context).evicted_keys
            found.append(sorted(int.from_bytes(key[:-4], "big") for key in evicted))
            manager.complete_store(keys, context)
        elif kind == "load":
            manager.prepare_load(keys, context)
            manager.complete_load(keys, context)
        else:
            manager.on_request_finished(context)
    return found

given = json.load(sys.stdin)
print(json.dumps([dropped(changes) for changes in given["worlds"]]))
"""


def test_vllm_drops_the_blocks_that_the_engine_model_drops(tmp_path: Path) -> None:
    need(vllm_cpu.missing())
    worlds = [drawn(random.Random(seed)) for seed in range(10)]
    assert all(sum(map(len, dropped)) > 1000 for _, dropped in worlds)
    assert in_vllm(tmp_path, [changes for changes, _ in worlds]) == [dropped for _, dropped in worlds]


def in_vllm(folder: Path, worlds: list[Any]) -> Any:
    """Return what a real vLLM drops at each store, with the policy that agents give to it."""
    extra = orjson.loads(offloading(1, ended_first=True))["kv_connector_extra_config"]
    given = {
        "blocks": BLOCKS,
        "policy": extra["eviction_policy"],
        "module": extra["cache_policy_module_path"],
        "worlds": worlds,
    }
    ran = subprocess.run(
        [vllm_cpu.PYTHON, "-c", PROGRAM],
        env={"PYTHONPATH": str(scheduler_path(folder))},
        input=orjson.dumps(given),
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return orjson.loads(ran.stdout.splitlines()[-1])


def drawn(draw: random.Random) -> tuple[list[Any], list[list[int]]]:
    """Return what requests do with texts of their own, and what the model drops at each store.

    A request may load what is left of the text of an ended one.
    """
    cache = HostCache(host_bytes=BLOCKS, block_bytes=1, bytes_per_s=1e9)
    texts: dict[int, int] = {}  # blocks stored of each open request's text
    ended: list[tuple[int, int]] = []
    changes: list[Any] = []
    dropped: list[list[int]] = []

    def blocks(text: int, stored: int) -> list[int]:
        return list(range(1000 * text, 1000 * text + stored))

    def there() -> set[int]:
        return {block for text in range(1, number + 1) for block in blocks(text, 60) if cache.cached([block])}

    number = 0
    for _ in range(1500):
        kind = draw.choice(("new", "store", "store", "store", "load", "end", "again"))
        if kind == "new" and len(texts) < 8:
            number += 1
            texts[number] = 0
        elif kind == "store" and texts:
            text = draw.choice(list(texts))
            fresh = blocks(text, min(60, texts[text] + draw.randint(1, 4)))[texts[text] :]
            if not fresh:
                continue
            before = there()
            cache.store(fresh)
            changes.append(("store", text, fresh))
            dropped.append(sorted(before - there()))
            texts[text] += len(fresh)
        elif kind == "load" and texts:
            text = draw.choice(list(texts))
            whole = blocks(text, texts[text])
            found = whole[: cache.cached(whole)]
            cache.load(found, 0)
            changes.append(("load", text, found))
        elif kind == "end" and texts:
            text = draw.choice(list(texts))
            whole = blocks(text, texts.pop(text))
            cache.end(whole, shared=0)
            changes.append(("end", text, whole))
            ended.append((text, len(whole)))
        elif kind == "again" and ended:
            text, stored = draw.choice(ended)
            whole = blocks(text, stored)
            found = whole[: cache.cached(whole)]
            reader = -len(changes) - 1
            cache.load(found, 0)
            cache.end(found, shared=0)
            changes += [("load", reader, found), ("end", reader, found)]
    return changes, dropped
