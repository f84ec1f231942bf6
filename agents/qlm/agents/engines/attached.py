"""External engine: attached by its address, supervised by its health endpoint."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from qlm.agents.engines.proof import prove_token
from qlm.domain.errors import EngineRefusedError, EngineUnavailableError
from qlm.domain.ports.engine import Engine
from qlm.domain.shell.tasks import end_tasks

log = logging.getLogger("qlm.agents")

PROBE_S: Final = 1.0
FIRST_PROOF_S: Final = 60.0
"""Least time for the first token of a server; a longer one is logged, and waited for while it is healthy."""

PROOF_S: Final = 10.0
"""Time in which a server that stood still must generate a token to be used again."""

PROBES_MISSED_MAX: Final = 4
"""Consecutive failed health probes after which an engine counts as failed."""

LIMITS_PROBES: Final = 30
"""Health probes from one look at the limits of a server to the next, unless it missed one meanwhile."""

_LIMITS: Final = ("context_tokens", "kv_tokens", "block_tokens")

KV_SHARE: Final = 0.05
"""Share by which KV caches of equal servers differ: vLLM measures at its start how much memory is left."""


class AttachedEngine:
    """ManagedEngine for a running vLLM-compatible server, which this agent neither starts nor stops."""

    def __init__(self, engine: Engine, url: str, *, context_tokens: int, ready_timeout_s: float) -> None:
        """Attach to nothing yet.

        Args:
            engine: Client of the server.
            url: Its address.
            context_tokens: What gateways let requests have, by the configuration.
            ready_timeout_s: Time for its first healthy answer.
        """
        self._engine = engine
        self._context_tokens = context_tokens
        self._url = url
        self._ready_timeout_s = ready_timeout_s
        self._hung = False

    @property
    def engine(self) -> Engine:
        """The client of the server."""
        return self._engine

    async def start(self) -> None:
        """Wait until the server answers its health probe, and have it generate a token.

        Health alone does not say that it has the route for tokens (`--enable-scale-out`), or lets QLM use it.

        Raises:
            EngineUnavailableError: It did not in time, or answered otherwise.
            EngineRefusedError: It refused the token's request.
        """
        log.info("waiting for the engine at %s", self._url)
        ends_s = asyncio.get_running_loop().time() + self._ready_timeout_s
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await self._healthy()
        except TimeoutError as error:
            raise EngineUnavailableError(
                f"{self._url} did not answer its health probe within {self._ready_timeout_s:g} s"
            ) from error
        await self._prove(PROOF_S if self._hung else self._first_proof_s(ends_s))
        self._hung = False
        await self._compare_context()

    async def _compare_context(self) -> None:
        """Warn if the server refuses requests that gateways accept."""
        served = (await self._limits()).get("context_tokens", self._context_tokens)
        if served < self._context_tokens:
            log.warning(
                "%s has a context of %d tokens and refuses longer requests, which gateways accept: "
                "context_tokens of its model is %d; expected at most %d",
                self._url, served, self._context_tokens, served,
            )  # fmt: skip

    def _first_proof_s(self, ends_s: float) -> float:
        """Return the time for the first token: a server that others use may have a long queue."""
        return max(FIRST_PROOF_S, ends_s - asyncio.get_running_loop().time())

    async def _prove(self, limit_s: float) -> None:
        """Have the server generate a token; give up, too, once it has failed several health probes."""
        proof = asyncio.ensure_future(prove_token(self._engine, limit_s))
        failure = asyncio.ensure_future(self.wait_failed())
        works = (proof, failure)
        try:
            if not (await asyncio.wait(works, timeout=FIRST_PROOF_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                log.warning("%s has generated no token in %g s; still waiting", self._url, FIRST_PROOF_S)
                await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            if not proof.done():
                raise EngineUnavailableError(failure.result())
            proof.result()
        finally:
            await end_tasks(works)

    async def _healthy(self) -> None:
        while True:
            if await self._engine.healthy():
                return
            await asyncio.sleep(PROBE_S / 2)

    async def stop(self) -> None:
        """Do nothing: the server belongs to its operator."""

    def hangs(self) -> None:
        """Require a token sooner at the next start: standing still, a server may answer its health probe."""
        self._hung = True

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._engine.close()

    async def prefetch(self) -> bool:
        """Return False: the weights files are on the server's machine."""
        return False

    async def drop_prefetched(self) -> None:
        """Do nothing: `prefetch` reads nothing."""

    async def wait_failed(self) -> str:
        """Wait until several consecutive health probes have failed, or another server answers them.

        A server that restarts within few probes, or lies behind a load balancer, may come back with a smaller
        context or KV cache: this agent would go on to fill the former one.
        """
        known = await self._limits()
        missed = probes = 0
        while missed < PROBES_MISSED_MAX:
            await asyncio.sleep(PROBE_S)
            probes += 1
            if not await self._engine.healthy():
                missed += 1
                continue
            if missed or probes >= LIMITS_PROBES:
                missed = probes = 0
                limits = await self._limits()
                if known and limits and not _alike(known, limits):
                    return f"{self._url} has other limits than before: {_differing(known, limits)}"
                known = known or limits
        return f"{self._url} failed {PROBES_MISSED_MAX} health probes in a row"

    async def _limits(self) -> dict[str, int]:
        """Return the limits that decide what may run at once; empty if it does not report them now."""
        try:
            capacity = await self._engine.capacity()
        except (EngineUnavailableError, EngineRefusedError):
            return {}
        return {name: getattr(capacity, name) for name in _LIMITS}


def _alike(known: dict[str, int], limits: dict[str, int]) -> bool:
    kv_apart = abs(limits["kv_tokens"] - known["kv_tokens"])
    return limits | {"kv_tokens": 0} == known | {"kv_tokens": 0} and kv_apart <= KV_SHARE * known["kv_tokens"]


def _differing(known: Mapping[str, int], limits: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name} {limits[name]}, was {known[name]}" for name in _LIMITS if limits[name] != known[name]
    )


async def wait_unhealthy(engine: Engine) -> None:
    """Wait until `PROBES_MISSED_MAX` consecutive health probes have failed."""
    missed = 0
    while missed < PROBES_MISSED_MAX:
        await asyncio.sleep(PROBE_S)
        missed = 0 if await engine.healthy() else missed + 1
