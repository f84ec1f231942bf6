"""Proof that an engine generates: a token of a new request."""

import asyncio
from secrets import token_hex

from qlm.domain.errors import EngineUnavailableError
from qlm.domain.ports.engine import Engine, EngineCall
from qlm.domain.sampling import Sampling


async def prove_token(engine: Engine, limit_s: float) -> None:
    """Have the engine generate one token.

    Raises:
        EngineUnavailableError: It did not in time, or without one.
        EngineRefusedError: It refused the request.
    """
    call = EngineCall(
        call_id=f"probe-{token_hex(6)}", prompt_ids=(1,), sampling=Sampling(max_tokens=1, ignore_eos=True)
    )
    tokens = 0
    try:
        async with asyncio.timeout(limit_s):
            async for chunk in engine.generate(call):
                tokens += len(chunk.token_ids)
    except TimeoutError as error:
        raise EngineUnavailableError(f"it generated no token within {limit_s:g} s") from error
    if not tokens:
        raise EngineUnavailableError("it ended an answer of one token without a token")
