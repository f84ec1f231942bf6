"""Kinds `keys` and `garbage`: keys of Redis that are lost, and messages that no part can read."""

import contextlib
import random
import time
from collections.abc import Collection
from functools import partial
from typing import Any, Final

import redis

from benchmarks.chaos.faults.fault import Hit, Kind
from benchmarks.chaos.rig import PREFIX, Rig

SINGLE: Final = 12
"""Keys lost one by one."""

BETWEEN_S: Final = 0.5
GARBAGE_S: Final = 5.0
OF_REQUEST: Final = ("request:", "log:")
"""Keys with the answer of a request that has ended."""

# The ends are read in the transaction that deletes: whatever ends later has its answer.
_DELETE: Final = """
local ended = redis.call('LRANGE', KEYS[1], 0, -1)
for at = 2, #KEYS do redis.call('DEL', KEYS[at]) end
return ended
"""


def single(rig: Rig, rng: random.Random) -> Hit:
    """Delete some keys, one by one."""
    with contextlib.closing(redis.Redis.from_url(rig.redis.url)) as client:
        for _ in range(SINGLE):
            _delete(rig, client, [rng.choice(_keys(client))])
            time.sleep(BETWEEN_S)
    return Hit(target=f"{SINGLE} keys")


def third(rig: Rig, rng: random.Random) -> Hit:
    """Delete a third of all keys at once."""
    with contextlib.closing(redis.Redis.from_url(rig.redis.url)) as client:
        keys = _keys(client)
        lost = rng.sample(keys, len(keys) // 3)
        _delete(rig, client, lost)
    return Hit(target=f"{len(lost)} keys")


def garbage(channels: str, rig: Rig, rng: random.Random) -> Hit:
    """Publish what no part can read on all channels of a kind."""
    with contextlib.closing(redis.Redis.from_url(rig.redis.url)) as client:
        over_s, sent = time.monotonic() + GARBAGE_S, 0
        while time.monotonic() < over_s:
            for channel in _decoded(client.pubsub_channels(f"{PREFIX}{channels}*")):
                client.publish(channel, rng.choice((b"", b"\x00", b"{}", b"[1", rng.randbytes(40))))
                sent += 1
            time.sleep(0.05)
    return Hit(target=f"{sent} messages", unkept="" if sent else f"no part listens on {channels}")


def _keys(client: redis.Redis) -> list[str]:
    return sorted(_decoded(client.scan_iter(f"{PREFIX}*", count=1000)))


def _delete(rig: Rig, client: redis.Redis, keys: Collection[str]) -> None:
    """Delete keys; note the ended requests whose answers were among them."""
    ended: Any = client.eval(_DELETE, 1 + len(keys), f"{PREFIX}ended", *keys)
    ids = {member.partition(":")[2] for member in _decoded(ended)}
    lost = {key.removeprefix(f"{PREFIX}{kind}") for kind in OF_REQUEST for key in keys if kind in key}
    rig.gone.update(ids & lost)


def _decoded(values: Any) -> list[str]:
    return [value.decode() for value in values]


KEYS: Final = (
    Kind(name="keys-single", group="keys", strike=single, deletes=True),
    Kind(name="keys-third", group="keys", strike=third, deletes=True),
    Kind(name="garbage-outputs", group="garbage", strike=partial(garbage, "outputs:")),
    Kind(name="garbage-notices", group="garbage", strike=partial(garbage, "notices:")),
)
