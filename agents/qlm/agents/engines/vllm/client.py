"""The `Engine` port over vLLM's HTTP API (0.32, `--enable-scale-out`).

Behaviour of /inference/v1/generate, measured on vLLM 0.32.0:

* An abort must name the id `generate-tokens-<request_id>`. An `X-Request-Id` header would override
  `request_id`. Ids need not be unique; unknown ids are ignored.
* `token_ids` includes the token that ends an answer, EOS or one of `stop_token_ids`; `finish_reason` is then
  `stop`. Below `min_tokens` no such token is sampled, not even the caller's. With `ignore_eos`, EOS is an
  ordinary token.
* `max_tokens` beyond the context is reduced to fit, and the answer ends with `length`. A prompt that fills
  the whole context is a 400.
* The API server's checks of a streaming request fail with an HTTP status. The engine's own checks (prompt too
  long, ids outside the vocabulary) fail after the status 200, in an event `{"error": {"code": 400, ...}}`.
* Cached prompt tokens are reported only in the usage event at the end of a stream, only if requested by
  `stream_options.include_usage`, and only if the server runs with `--enable-prompt-tokens-details`.
* Log probabilities of a prompt are only in an answer that is not a stream. A prompt for which they are asked
  is computed without the prefix cache, and found there later.
* Requests to a sleeping engine wait until it wakes. Going to sleep (mode `abort`) ends running requests with
  `abort`.
* `kv_cache_size_tokens` includes one block that vLLM reserves for itself.
* `/server_info`, a development endpoint, is the only one that reports `--max-num-batched-tokens`. Its first
  answer takes seconds (3.3 s on two CPU cores), since the server also lists its packages.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import aiohttp
import orjson

from qlm.agents.batching.sent_objective import sent_objective
from qlm.agents.engines.http.chunks import chunks_of
from qlm.agents.engines.http.client import StreamClient
from qlm.agents.engines.http.connection import LostError
from qlm.agents.engines.http.statuses import StatusError, error_of, naming
from qlm.agents.engines.vllm.media import RENDER, features_of, render_body
from qlm.agents.engines.vllm.prompt import read_prompt
from qlm.agents.engines.vllm.stream import EngineStream
from qlm.domain.errors import EngineRefusedError, EngineUnavailableError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.domain.ports.tracing import TRACE_HEADER
from qlm.domain.sampling import Sampling

_ABORT_PREFIX: Final = "generate-tokens-"
_HEALTH_TIMEOUT: Final = aiohttp.ClientTimeout(total=5.0)
_SERVER_INFO_TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0)
_PREPARED_AT_ONCE: Final = 2
_MEDIA_TIMEOUT: Final = aiohttp.ClientTimeout(total=120.0)
_GENERATE: Final = "/inference/v1/generate"
_KEEPALIVE_S: Final = 4.0
"""Lifetime of an idle connection: less than the 5 s of vLLM (`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`)."""
_NETWORK_ERRORS: Final = (aiohttp.ClientError, TimeoutError, OSError)
_LONG_TOKENS: Final = 1000
"""Tokens of a prompt whose log probabilities take some 5 ms to be read: other streams go on meanwhile."""
_DEFAULTS: Final = Sampling(max_tokens=1)
_OPTIONAL: Final = (
    "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "ignore_eos", "stop_token_ids",
)  # fmt: skip


class VllmEngine:
    """Client of one `vllm serve`, or of any server with the same API.

    Create it inside the event loop that will use it.

    Args:
        base_url: Such as `http://127.0.0.1:8100`.
        model: The name under which the engine serves.
        seqs_max: Its `--max-num-seqs`, by the configuration.
        batched_tokens_max: The `--max-num-batched-tokens` with which it was started; None to ask it.
        batched_tokens_expected: The same by its profile and the configuration.
        answer_timeout_s: Limit for connecting, and for each call except generate, sleep and wake.
        sleep_timeout_s: Limit for sleep and wake.
        sends_objectives: It has a batch policy, to which each call tells its objective.
        clock: Nanoseconds since the epoch, for the age of requests.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        seqs_max: int,
        batched_tokens_max: int | None = None,
        batched_tokens_expected: int | None = None,
        api_key: str | None = None,
        answer_timeout_s: float = 10.0,
        sleep_timeout_s: float = 300.0,
        sends_objectives: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._model = model
        self._seqs_max = seqs_max
        self._batched_tokens = batched_tokens_max, batched_tokens_expected
        self._sleep_level = 0
        self._sends_objectives, self._clock = sends_objectives, clock
        self._answer_timeout = aiohttp.ClientTimeout(total=answer_timeout_s)
        self._sleep_timeout = aiohttp.ClientTimeout(total=sleep_timeout_s)
        headers = {"Content-Type": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=answer_timeout_s),
        )
        self._features: dict[str, bytes] = {}
        self._preparing = asyncio.Semaphore(_PREPARED_AT_ONCE)
        self._url = f"{self._base_url}{_GENERATE}"
        self._streams = StreamClient(
            self._base_url, _GENERATE, headers, connect_s=answer_timeout_s, idle_max_s=_KEEPALIVE_S
        )

    def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        """Generate tokens; closing the iterator closes the connection, which aborts the request."""
        return chunks_of(self.push, call)

    async def push(self, call: EngineCall, take: Callable[[EngineChunk], None]) -> EngineChunk | None:
        """Generate tokens without a task that wakes for them; a cancellation closes the connection.

        Args:
            call: The call.
            take: Receives the tokens of each read but the last ones, as a chunk.

        Returns:
            The last chunk; None if the generation was aborted while it waited.
        """
        with naming(call.sampling.adapter):
            return await self._push_scored(call, take)

    async def prepare(self, call: EngineCall, media: bytes) -> None:
        """Let the engine make tensors of the media of a call, of few calls at a time: they are large."""
        async with self._preparing:
            body = await asyncio.to_thread(render_body, media, call.sampling.adapter or self._model)
            try:
                with naming(call.sampling.adapter):
                    answer = await self._ask("POST", RENDER, orjson.Fragment(body), limit=_MEDIA_TIMEOUT)
            except StatusError as error:  # a route of its own: the status says nothing of that for tokens
                raise EngineUnavailableError(str(error)) from error
            self._features[call.call_id] = await asyncio.to_thread(features_of, media, answer)

    def forget(self, call_id: str) -> None:
        """Drop the tensors of a call that is over."""
        self._features.pop(call_id, None)

    async def _push_scored(self, call: EngineCall, take: Callable[[EngineChunk], None]) -> EngineChunk | None:
        if call.prompt_logprobs is None:
            return await self._push(call, take)
        scored = await self._scored_prompt(call, call.prompt_logprobs)
        if scored is None:
            return None
        take(EngineChunk(token_ids=(), prompt_logprobs=scored))
        last = await self._push(call, take)
        # What the engine then found of the prompt, it had computed just before.
        return replace(last, cached_tokens=0) if last is not None and last.cached_tokens else last

    async def _push(self, call: EngineCall, take: Callable[[EngineChunk], None]) -> EngineChunk | None:
        headers = {TRACE_HEADER: call.traceparent} if call.traceparent else {}
        stream = EngineStream(call.logprobs, call.sampling.max_tokens)

        def feed(data: bytes) -> None:
            if (chunk := stream.feed(data)) is not None:
                take(chunk)

        try:
            await self._streams.post(await self._written(call), headers, feed)
        except LostError as error:
            if stream.finish is None and not stream.done:
                what = (
                    "the engine's stream broke" if error.began else f"cannot reach the engine at {self._url}"
                )
                raise EngineUnavailableError(f"{what}: {error}") from error
        return stream.last()

    async def abort(self, call_ids: Sequence[str]) -> None:
        """Request the abort of generations; each is over only when its own stream ends."""
        ids = [_ABORT_PREFIX + call_id for call_id in call_ids]
        await self._ask("POST", "/inference/v1/abort_requests", {"request_ids": ids})

    async def capacity(self) -> EngineCapacity:
        """Read the limits, without the KV block that vLLM reserves for itself."""
        metrics = await self._ask("GET", "/metrics")
        labels = dict(re.findall(rb'(\w+)="([^"]*)"', _find(rb"^vllm:cache_config_info\{(.*)\}", metrics)))
        answer = await self._ask("GET", "/v1/models")
        started_with, expected = self._batched_tokens
        try:
            context_tokens = {model["id"]: model["max_model_len"] for model in orjson.loads(answer)["data"]}
            block_tokens = int(labels[b"block_size"])
            tokens = labels[b"kv_cache_size_tokens"]
            kv_tokens = int(labels[b"num_gpu_blocks"]) * block_tokens if tokens == b"None" else int(tokens)
            return EngineCapacity(
                kv_tokens=kv_tokens - block_tokens,
                block_tokens=block_tokens,
                seqs_max=self._seqs_max,
                context_tokens=int(context_tokens[self._model]),
                batched_tokens_max=started_with or await self.batched_tokens_max(),
                batched_tokens_expected=expected,
            )
        except (LookupError, TypeError, ValueError) as error:
            raise EngineUnavailableError(f"cannot read the engine's capacity: {error!r}") from error

    async def batched_tokens_max(self) -> int | None:
        """Ask for `--max-num-batched-tokens`; None if the engine does not report it."""
        path = "/server_info?config_format=json"
        try:
            info = orjson.loads(await self._ask("GET", path, limit=_SERVER_INFO_TIMEOUT))
            reported = int(info["vllm_config"]["scheduler_config"]["max_num_batched_tokens"])
        except (EngineUnavailableError, EngineRefusedError, LookupError, TypeError, ValueError):
            return None
        return reported if reported > 0 else None

    async def healthy(self) -> bool:
        """Return True if the server answers and its EngineCore is alive."""
        try:
            await self._ask("GET", "/health", limit=_HEALTH_TIMEOUT)
        except (EngineUnavailableError, EngineRefusedError):
            return False
        return True

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator; running requests are aborted."""
        await self._ask("POST", f"/sleep?level={level}&mode=abort", limit=self._sleep_timeout)
        self._sleep_level = level

    async def wake(self) -> None:
        """Undo `sleep`; after level 2, read the weights from storage again."""
        limit = self._sleep_timeout
        if self._sleep_level == 2:
            await self._ask("POST", "/wake_up?tags=weights", limit=limit)
            await self._ask("POST", "/collective_rpc", {"method": "reload_weights"}, limit=limit)
            await self._ask("POST", "/wake_up?tags=kv_cache", limit=limit)
        else:
            await self._ask("POST", "/wake_up", limit=limit)
        self._sleep_level = 0

    async def close(self) -> None:
        """Close all connections."""
        self._streams.close()
        await self._session.close()

    def _body(self, call: EngineCall) -> dict[str, Any]:
        params = _sampling_params(call.sampling)
        if self._sends_objectives and call.objective is not None:
            params["extra_args"] = sent_objective(call.objective, self._clock()).extra_args()
        if call.logprobs is not None:
            # With 0 the answer would lack the rank of the sampled token.
            params["logprobs"] = max(1, call.logprobs)
        beside: dict[str, Any] = {}
        if call.sampling.grammar:
            beside = orjson.loads(call.sampling.grammar)
            params["structured_outputs"] = beside.pop("structured_outputs")
        return {
            **beside,
            "model": call.sampling.adapter or self._model,
            "request_id": call.call_id,
            "token_ids": call.prompt_ids,
            "sampling_params": params,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _written(self, call: EngineCall) -> bytes:
        """Return the body of a call as JSON text, and forget its tensors."""
        body = self._body(call)
        features = self._features.pop(call.call_id, None)
        if features is None:
            return orjson.dumps(body)
        body["features"] = orjson.Fragment(features)
        return await asyncio.to_thread(orjson.dumps, body)

    async def _scored_prompt(self, call: EngineCall, top: int) -> bytes | None:
        """Return the packed log probabilities of the prompt; None if the call was aborted meanwhile."""
        sampling = Sampling(max_tokens=1, adapter=call.sampling.adapter)
        body = self._body(replace(call, sampling=sampling, logprobs=None)) | {"stream": False}
        body["sampling_params"]["prompt_logprobs"] = top
        del body["stream_options"]
        if (features := self._features.get(call.call_id)) is not None:
            body["features"] = orjson.Fragment(features)
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._answer_timeout.total)
        answer = await self._ask("POST", _GENERATE, body, limit=limit)
        if len(call.prompt_ids) < _LONG_TOKENS:
            return read_prompt(answer, call.prompt_ids, top)
        return await asyncio.to_thread(read_prompt, answer, call.prompt_ids, top)

    async def _ask(
        self, method: str, path: str, body: object = None, *, limit: aiohttp.ClientTimeout | None = None
    ) -> bytes:
        """Make a short call; return the body of its response with status 200."""
        data = None if body is None else orjson.dumps(body)
        with self._unavailable(f"{method} {self._base_url}{path} failed"):
            async with self._session.request(
                method, self._base_url + path, data=data, timeout=limit or self._answer_timeout
            ) as response:
                if response.status != 200:
                    await _raise_for(response)
                return await response.read()

    @contextmanager
    def _unavailable(self, what: str) -> Iterator[None]:
        """Turn every error of the connection into EngineUnavailableError, its closed client included."""
        try:
            yield
        except (EngineUnavailableError, EngineRefusedError):
            raise
        except _NETWORK_ERRORS as error:
            raise EngineUnavailableError(f"{what}: {error!r}") from error
        except Exception as error:
            # aiohttp has no class for this: a session closed meanwhile raises RuntimeError or AssertionError.
            if not self._session.closed:
                raise
            raise EngineUnavailableError(f"{what}: its client is closed") from error


def _sampling_params(sampling: Sampling) -> dict[str, Any]:
    # Only values that differ from vLLM's defaults. QLM detokenizes in its gateways.
    params: dict[str, Any] = {"max_tokens": sampling.max_tokens, "detokenize": False}
    for name in _OPTIONAL:
        if (value := getattr(sampling, name)) != getattr(_DEFAULTS, name):
            params[name] = value
    if sampling.logit_bias:
        params["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    return params


async def _raise_for(response: aiohttp.ClientResponse) -> None:
    """Raise the error for a status other than 200."""
    try:
        text = await response.read()
    except _NETWORK_ERRORS as error:
        text = repr(error).encode()
    finally:
        response.close()
    raise error_of(response.status, text)


def _find(pattern: bytes, metrics: bytes) -> bytes:
    found = re.search(pattern, metrics, re.MULTILINE)
    if found is None:
        raise EngineUnavailableError(f"the engine's metrics lack {pattern.decode()}")
    return found.group(1)
