"""An agent that hosts a batch policy by aborts, in a world without faults, with a burst of requests."""

from dataclasses import replace
from typing import Final

from qlm.agents.batching.decision import BatchPolicy
from qlm.domain.request import Request
from qlm.domain.slo import ReadingSlo
from qlm.store.core import output_log
from support.agent_engines import EOS, answer_to
from support.agent_world import World
from support.policy_engine import Times
from support.requests import a_request

ROUNDS_MAX: Final = 400


def hosted_burst(requests: int = 30) -> list[Request]:
    """Return requests with a reader, a deadline or no objective, by turns; some are pinned."""
    made = []
    for n in range(requests):
        request = a_request(
            f"r{n}", deadline_ms=(None, 2_000.0, 60_000.0)[n % 3], max_tokens=12, eos_token_ids=(EOS,),
            prompt_tokens=(4, 60)[n % 2], presence_penalty=0.5 if n % 10 == 9 else 0.0,
        )  # fmt: skip
        if n % 3 == 1:
            slo = ReadingSlo(ttft_ms=2_000.0, tokens_per_s=2.0)
            request = replace(request, slo=slo, cls=replace(request.cls, slo=slo.label()))
        made.append(replace(request, tenant=str(1 + n % 13)))
    return made


def tokens_of(requests: list[Request]) -> dict[str, int]:
    """Return the tokens of each answer."""
    return {request.id: len(answer_to(request)) for request in requests}


def serve_by_aborts(policy: BatchPolicy, requests: list[Request]) -> Times:
    """Let an agent serve requests, four in each round, until all have ended."""
    world, times = World(lambda: policy), Times()
    world.end_swap(ok=True)
    coming = list(requests)
    for _ in range(ROUNDS_MAX):
        for request in coming[:4]:
            world.accept(replace(request, arrival_ns=world.now_ns))
        del coming[:4]
        world.calm()
        for id in world.requests:
            output = output_log.read_output(world.state, id, 0)
            if output is None or not output.token_ids:
                continue
            seen = times.setdefault(id, [world.now_ns, 0, 0])
            if seen[2] < len(output.token_ids):
                seen[1:] = [world.now_ns, len(output.token_ids)]
        if not coming and world.ended.keys() == world.requests.keys():
            return times
    raise AssertionError("some request never ended")
