"""What an engine says about itself: model, version, and settings of its scheduler."""

from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from qlm.domain.errors import EngineUnavailableError, InvalidValueError

_TIMEOUT_S: Final = 30.0
"""Limit of an answer. The settings take vLLM 0.32 seconds, as it lists its packages beside them."""
_NOT_SERVED: Final = frozenset({401, 403, 404, 405})
"""Answers of an engine that does not show its settings: vLLM does in development mode only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What an engine says about itself.

    Attributes:
        served: Name under which it serves the model.
        version: Version of vLLM.
        seqs_max: `--max-num-seqs`; None if it does not say.
        batched_tokens_max: `--max-num-batched-tokens`; None if it does not say.
        async_scheduling: `--async-scheduling`; None if it does not say.
    """

    served: str
    version: str
    seqs_max: int | None = None
    batched_tokens_max: int | None = None
    async_scheduling: bool | None = None


async def describe(url: str, model: str | None, api_key: str | None) -> Described:
    """Ask an engine.

    Args:
        url: Its address.
        model: Name of the model at the engine; None for its only one.
        api_key: Its key, if it wants one.

    Raises:
        EngineUnavailableError: It does not answer as vLLM does.
        InvalidValueError: It does not serve that model.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(url.rstrip("/") + "/", headers=headers, timeout=timeout) as session:
            models = [str(m["id"]) for m in (await _json(session, "v1/models"))["data"]]
            version = str((await _json(session, "version"))["version"])
            settings = await _settings(session)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise EngineUnavailableError(f"no engine answers at {url}: {reason}") from error
    if model is None and len(models) == 1:
        model = models[0]
    if model not in models:
        raise InvalidValueError("--model", model, f"one of {', '.join(models)}")
    return Described(served=model, version=version, **settings)


async def _json(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path, raise_for_status=True) as response:
        return await response.json()


async def _settings(session: aiohttp.ClientSession) -> dict[str, Any]:
    """Read the scheduler's settings, which vLLM shows with VLLM_SERVER_DEV_MODE=1."""
    async with session.get("server_info", params={"config_format": "json"}) as response:
        if response.status in _NOT_SERVED:
            return {}
        response.raise_for_status()
        scheduler = (await response.json())["vllm_config"]["scheduler_config"]
    names = {
        "seqs_max": "max_num_seqs",
        "batched_tokens_max": "max_num_batched_tokens",
        "async_scheduling": "async_scheduling",
    }
    return {ours: scheduler.get(theirs) for ours, theirs in names.items()}
