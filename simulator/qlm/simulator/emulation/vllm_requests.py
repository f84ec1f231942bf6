"""Parsers for requests to vLLM 0.32's generation endpoints, as far as the emulator supports them.

Errors have vLLM's format, status and type; the wording is our own.
"""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from qlm.agents.batching.sent_objective import NO_OBJECTIVE, Objective, objective_of, received_objective
from qlm.domain.byte_tokens import VOCABULARY
from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.token_logprobs import LOGPROBS_MAX
from qlm.domain.ids import TokenIds
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling

_log = logging.getLogger(__name__)

_COMPLETION_TOKENS: Final = 16
"""Default max_tokens of /v1/completions; /inference/v1/generate fills the context instead."""


class VllmApiError(Exception):
    """Error response.

    Attributes:
        status: HTTP status.
        body: vLLM's error object.
        late: Found by the engine, not by the API server: a stream has started by then, with status 200.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "BadRequestError",
        param: str | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.late = late
        self.body = {"error": {"message": message, "type": type, "param": param, "code": status}}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRequest:
    """Checked request for tokens.

    Attributes:
        public_id: Id in the response.
        external_id: Id that aborts the request.
        sampling: Lengths, stops, grammar and adapter; the rest is ignored.
        stream: The response is a stream.
        usage: A stream ends with token counts.
        token_ids: A completion has ids in addition to text.
        objective: For batch policies.
        logprobs: Candidates per token whose log probabilities are wanted; None for none.
        prompt_logprobs: Candidates per token of the prompt, besides the token itself; None for none.
    """

    public_id: str
    external_id: str
    prompt_ids: TokenIds
    sampling: Sampling
    stream: bool
    usage: bool
    token_ids: bool = True
    objective: Objective = NO_OBJECTIVE
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def call(self, call_id: str, now_ns: int, time_scale: float) -> EngineCall:
        """Build the engine's call.

        Args:
            call_id: Its id there.
            now_ns: Time of the engine's clock.
            time_scale: Real seconds per second of that clock.
        """
        objective = received_objective(self.objective, now_ns, time_scale=time_scale)
        return EngineCall(
            call_id=call_id, prompt_ids=self.prompt_ids, sampling=self.sampling, objective=objective
        )


def parse_body(body: bytes, content_type: str) -> dict[str, Any]:
    """Parse a JSON object."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise VllmApiError(
            400, "Unsupported media type: only application/json is allowed.", type="Bad Request"
        )
    try:
        plain = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise VllmApiError(400, f"The body is not JSON: {error}.", type="Bad Request", param="body") from None
    if not isinstance(plain, dict):
        raise VllmApiError(400, "The body must be a JSON object.", type="Bad Request", param="body")
    return plain


def parse_generate(
    body: Mapping[str, Any], header_id: str | None, models: Sequence[str], context_tokens: int
) -> VllmRequest:
    """Parse a body of /inference/v1/generate."""
    adapter = _adapter(body, models)
    params = body.get("sampling_params")
    if not isinstance(params, Mapping):
        raise _invalid("sampling_params", params, "an object")
    prompt_ids = _token_ids("token_ids", body.get("token_ids"))
    room = _room(prompt_ids, context_tokens, late=True)
    public_id = f"generate-tokens-{header_id or _request_id(body)}"
    return VllmRequest(
        public_id=public_id,
        external_id=public_id,
        prompt_ids=prompt_ids,
        sampling=_sampling(params, default_tokens=room, room=room, adapter=adapter),
        stream=bool(body.get("stream")),
        usage=_include_usage(body),
        objective=_objective(params, len(prompt_ids)),
        logprobs=_logprobs(params),
        prompt_logprobs=_logprobs(params, "prompt_logprobs"),
    )


def parse_completion(
    body: Mapping[str, Any], header_id: str | None, models: Sequence[str], context_tokens: int
) -> VllmRequest:
    """Parse a body of /v1/completions; the tokens of a text prompt are its UTF-8 bytes."""
    adapter = _adapter(body, models)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    prompt_ids = tuple(prompt.encode()) if isinstance(prompt, str) else _token_ids("prompt", prompt)
    if not prompt_ids:
        raise _invalid("prompt", prompt, "at least one token")
    room = _room(prompt_ids, context_tokens, late=False)
    if isinstance(wanted := body.get("max_tokens"), int) and wanted > context_tokens:
        raise _invalid(
            "max_tokens", wanted, f"at most max_model_len={context_tokens}", type="BadRequestError"
        )
    public_id = f"cmpl-{header_id or _request_id(body)}"
    return VllmRequest(
        public_id=public_id,
        external_id=f"{public_id}-0",
        prompt_ids=prompt_ids,
        sampling=_sampling(body, default_tokens=_COMPLETION_TOKENS, room=room, adapter=adapter),
        stream=bool(body.get("stream")),
        usage=_include_usage(body),
        token_ids=bool(body.get("return_token_ids")),
        logprobs=_logprobs(body),
    )


Parse = Callable[[Mapping[str, Any], str | None, Sequence[str], int], VllmRequest]
"""Signature of both parsers: body, X-Request-Id header, served model and then its adapters, context."""


def parse_sleep(query: Mapping[str, str]) -> tuple[int, bool]:
    """Return the level, and whether running requests are kept.

    vLLM's level 0 and mode `wait` are not supported.
    """
    level, mode = query.get("level", "1"), query.get("mode", "abort")
    if level not in ("1", "2"):
        raise _invalid("query.level", level, "1 or 2")
    if mode not in ("abort", "keep"):
        raise _invalid("query.mode", mode, "abort or keep")
    return int(level), mode == "keep"


def parse_abort(body: Mapping[str, Any]) -> list[str]:
    """Return the ids to abort."""
    ids = body.get("request_ids")
    if ids is None:
        raise VllmApiError(400, "Missing 'request_ids' in request body", type="Bad Request")
    return [ids] if isinstance(ids, str) else [str(one) for one in ids]


def _objective(params: Mapping[str, Any], prompt_tokens: int) -> Objective:
    """Return the objective of a request; one that cannot be read is none, as for QLM's scheduler in vLLM."""
    extra_args = params.get("extra_args")
    try:
        return objective_of(
            extra_args if isinstance(extra_args, Mapping) else None, prompt_tokens=prompt_tokens
        )
    except InvalidValueError as error:
        _log.warning("a request is served without objective: %s", error)
        return NO_OBJECTIVE


def _adapter(body: Mapping[str, Any], models: Sequence[str]) -> str:
    """Return the adapter that a body names; empty for the model itself."""
    model, *adapters = models
    if (wanted := body.get("model")) in (None, model):
        return ""
    if wanted not in adapters:
        message = f"The model `{wanted}` does not exist. Valid aliases: {', '.join(models)}."
        raise VllmApiError(404, message, type="NotFoundError", param="model")
    return str(wanted)


def _request_id(body: Mapping[str, Any]) -> str:
    """Return the client's id, or a new one; the caller lets a header override it, as measured on vLLM."""
    given = body.get("request_id")
    return given if isinstance(given, str) and given else secrets.token_hex(8)


def _token_ids(field: str, value: object) -> TokenIds:
    if not isinstance(value, list) or not value or not all(type(one) is int for one in value):
        raise _invalid(field, value, "a list of at least one token id")
    if min(value) < 0:
        raise _invalid(field, min(value), "ids that are not negative")
    if (largest := max(value)) >= VOCABULARY:
        raise VllmApiError(400, f"Token id {largest} is out of vocabulary", late=True)
    return tuple(value)


def _room(prompt_ids: TokenIds, context_tokens: int, *, late: bool) -> int:
    room = context_tokens - len(prompt_ids)
    if room < 1:
        raise VllmApiError(
            400, f"The prompt has {len(prompt_ids)} tokens, which leaves no room for output: "
            f"the maximum model length is {context_tokens} tokens.", param="input_tokens", late=late,
        )  # fmt: skip
    return room


def _sampling(params: Mapping[str, Any], *, default_tokens: int, room: int, adapter: str) -> Sampling:
    max_tokens = _whole(params, "max_tokens", min(default_tokens, room), least=1)
    min_tokens = _whole(params, "min_tokens", 0, least=0)
    if min_tokens > max_tokens:
        raise _invalid("min_tokens", min_tokens, f"at most max_tokens={max_tokens}", type="BadRequestError")
    if _whole(params, "n", 1, least=1) != 1:
        raise _invalid("n", params["n"], "1, the only number of answers the emulator gives")
    stops = params.get("stop_token_ids") or []
    constraint = params.get("structured_outputs")
    return Sampling(
        max_tokens=min(max_tokens, room),
        min_tokens=min(min_tokens, room),
        ignore_eos=bool(params.get("ignore_eos")),
        stop_token_ids=_token_ids("stop_token_ids", stops) if stops else (),
        grammar=orjson.dumps({"structured_outputs": constraint}).decode() if constraint else "",
        adapter=adapter,
    )


def _whole(params: Mapping[str, Any], field: str, default: int, *, least: int) -> int:
    value = params.get(field)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise _invalid(field, value, f"a whole number of at least {least}", type="BadRequestError")
    return value


def _logprobs(params: Mapping[str, Any], field: str = "logprobs") -> int | None:
    if params.get(field) is None:
        return None
    wanted = _whole(params, field, 0, least=0)
    if wanted > LOGPROBS_MAX:
        raise _invalid(field, wanted, f"at most {LOGPROBS_MAX}", type="BadRequestError")
    return wanted


def _include_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, Mapping) and bool(options.get("include_usage"))


def _invalid(field: str, value: object, expected: str, *, type: str = "Bad Request") -> VllmApiError:
    return VllmApiError(400, f"{field} must be {expected}, got {str(value)[:100]!r}.", type=type, param=field)
