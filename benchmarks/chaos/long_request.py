"""`python -m benchmarks.chaos.long_request`: a request that runs longer than the broker's ack timeout.

RabbitMQ closes the channel of a delivery that is not acknowledged in time (its `consumer_timeout`, here 60 s,
checked every second) and delivers the message again. Two clusters, each with its own RabbitMQ, run one
streamed request for 90 s. One knows the timeout and renews the delivery; the other assumes RabbitMQ's usual
30 minutes. Neither may lose, repeat or restart anything, and the first must not lose its channel. Takes two
minutes, with little processor time.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks import setups
from benchmarks.chaos.client_request import reference
from support.cluster import cluster
from support.cluster_load import depths
from support.rabbitmq import RabbitMQ, running_rabbitmq
from support.redis import running_redis

TIMEOUT_S: Final = 60
RUNS_S: Final = 90
TIME_SCALE: Final = 10.0
FEW: Final = 60
"""Tokens of a first answer, which measures the time per token."""

PROMPT: Final = "a long prompt"
MODEL: Final = "slow"
CLOSED: Final = "timed out"
"""Text in RabbitMQ's log when it closes a channel for a late acknowledgement."""

SETTLED_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Result of one cluster.

    Attributes:
        believed_s: Timeout in QLM's configuration.
        ran_s: Time from the first token to the last.
        exact: Each right token came once.
        leased: Number of leases; 1 if the request was never restarted.
        ended: Number of ends.
        channels_closed: Number of channels that RabbitMQ closed.
        left: Messages in the queues at the end.
    """

    believed_s: float
    ran_s: float
    exact: bool
    leased: int
    ended: int
    channels_closed: int
    left: int

    @property
    def good(self) -> bool:
        """True if it ran for longer than the timeout, once, and exactly."""
        once = self.exact and (self.leased, self.ended, self.left) == (1, 1, 0)
        return (
            once and self.ran_s > TIMEOUT_S and (self.channels_closed == 0) == (self.believed_s <= TIMEOUT_S)
        )


@dataclass(slots=True, kw_only=True)
class Streamed:
    """Streamed answer with the time of each token."""

    id: str
    text: list[str] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)

    @property
    def pace_s(self) -> float:
        """Seconds per token after the first."""
        return (self.token_s[-1] - self.token_s[0]) / (len("".join(self.text)) - 1)


def main() -> int:
    """Run both clusters at the same time and print their results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.long_request", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/long_request.json"))
    options = parser.parse_args()
    print(f"machine: {setups.machine()}; timeout {TIMEOUT_S} s", flush=True)
    with ThreadPoolExecutor() as both:
        seen = list(both.map(run, (float(TIMEOUT_S), 1800.0)))
    for one in seen:
        print(one)
    setups.save(options.out, {"machine": setups.machine(), "seen": [asdict(one) for one in seen]})
    return 0 if all(one.good for one in seen) else 1


def run(believed_s: float) -> Observed:
    """Run one request on its own servers and cluster."""
    with (
        tempfile.TemporaryDirectory(prefix="qlm-long-") as folder,
        running_rabbitmq(consumer_timeout_ms=TIMEOUT_S * 1000) as rabbitmq,
        running_redis() as redis,
        cluster(rabbitmq, redis, _config(believed_s), folder=Path(folder), name=None) as parts,
    ):
        few = _stream(parts.url, "a short one", FEW)
        tokens = math.ceil(RUNS_S / few.pace_s)
        streamed = _stream(parts.url, PROMPT, tokens)
        record = httpx.get(f"{parts.admin_url}/admin/v1/requests/{streamed.id}").raise_for_status().json()
        what = [event["what"] for event in record["events"]]
        return Observed(
            believed_s=believed_s,
            ran_s=round(streamed.token_s[-1] - streamed.token_s[0], 1),
            exact="".join(streamed.text) == reference(PROMPT, tokens),
            leased=what.count("leased"),
            ended=what.count("ended"),
            channels_closed=rabbitmq.log().count(CLOSED),
            left=_left(rabbitmq),
        )


def _config(believed_s: float) -> dict[str, Any]:
    return {
        "models": [{"id": MODEL, "profile": "mistral-7b", "context_tokens": 8192}],
        "instances": [{"id": "i0", "accelerator": "A100", "models": [MODEL]}],
        "emulate": {"time_scale": TIME_SCALE},
        "broker_ack_timeout_s": believed_s,
    }


def _stream(url: str, prompt: str, tokens: int) -> Streamed:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        made = Streamed(id=answer.raise_for_status().headers["x-request-id"])
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                made.text.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
                made.token_s.append(time.monotonic())
    return made


def _left(rabbitmq: RabbitMQ) -> int:
    """Count the messages that remain in the queues at the end."""
    until_s = time.monotonic() + SETTLED_S
    while (left := sum(depths(rabbitmq.url).values())) and time.monotonic() < until_s:
        time.sleep(0.2)
    return left


if __name__ == "__main__":
    sys.exit(main())
