"""Schema of messages and records: requests and metadata as plain data (dicts, lists, numbers, strings)."""

# Each request is written twice when it arrives, so fields are read by name: `dataclasses.asdict` copies
# deeply and takes ten times as long.

from collections.abc import Mapping
from typing import Any, Final

from qlm.domain.errors import InvalidValueError, UndecodableDataError
from qlm.domain.formats.extensions import (
    NO_REQUEST_EXTENSIONS,
    RequestExtensions,
    extensions_from_plain,
    extensions_to_plain,
)
from qlm.domain.formats.message_checks import check_request
from qlm.domain.group import RequestClass
from qlm.domain.request import Answer, AnswerKind, Request, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.shown import shown
from qlm.domain.slo import BatchSlo, DeadlineSlo, OnMiss, ReadingSlo, Slo, TokenSlo

SCHEMA_VERSION: Final = 1
"""Version of the schema written; a reader refuses any other."""

_SLO_KINDS: Final[dict[str, type[Slo]]] = {
    "deadline": DeadlineSlo,
    "token": TokenSlo,
    "reading": ReadingSlo,
    "batch": BatchSlo,
}


_LATER: Final = ("grammar", "adapter", "media")
"""Sampling parameters that a reader without them must refuse, since they change the tokens of an answer."""


def metadata_to_plain(metadata: RequestMetadata) -> dict[str, Any]:
    """Return request metadata as plain data; a `Request` loses its prompt."""
    plain: dict[str, Any] = {
        "version": SCHEMA_VERSION,
        "id": metadata.id,
        "cls": class_to_plain(metadata.cls),
        "tenant": metadata.tenant,
        "slo": slo_to_plain(metadata.slo),
        "on_miss": metadata.on_miss.value,
        "arrival_ns": metadata.arrival_ns,
        "prompt_tokens": metadata.prompt_tokens,
        "prompt_tail": list(metadata.prompt_tail),
        "sampling": sampling_to_plain(metadata.sampling),
        "answer": _shallow(metadata.answer),
        "fingerprint": metadata.fingerprint,
        "detached": metadata.detached,
    }
    if metadata.traceparent:
        plain["traceparent"] = metadata.traceparent
    if metadata.extensions is not NO_REQUEST_EXTENSIONS and (
        extensions := extensions_to_plain(metadata.extensions)
    ):
        plain["extensions"] = extensions
    return plain


def metadata_from_plain(plain: Mapping[str, Any]) -> RequestMetadata:
    """Return the request metadata of plain data.

    Raises:
        UndecodableDataError: The schema version is unknown, or a field is missing or wrong.
    """
    return RequestMetadata(**_metadata_fields(plain))


def request_to_plain(request: Request) -> dict[str, Any]:
    """Return a request with its prompt as plain data."""
    return metadata_to_plain(request) | {"prompt_ids": list(request.prompt_ids)}


def request_from_plain(plain: Mapping[str, Any]) -> Request:
    """Return the request of plain data.

    Raises:
        UndecodableDataError: The schema version is unknown, or a field is missing, wrong or of a wrong type.
    """
    fields = _metadata_fields(plain)
    try:
        request = Request(prompt_ids=tuple(plain["prompt_ids"]), **fields)
        check_request(request)
        return request
    except InvalidValueError as error:
        raise UndecodableDataError(f"message cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UndecodableDataError(f"message cannot be read: {error!r}") from error


def class_to_plain(cls: RequestClass) -> dict[str, Any]:
    """Return a class as plain data; `late` only if set, since older readers refuse unknown keys."""
    plain = _shallow(cls)
    if not cls.late:
        del plain["late"]
    return plain


def sampling_to_plain(sampling: Sampling) -> dict[str, Any]:
    """Return sampling parameters as plain data; those of `_LATER` only if set: older readers refuse them."""
    plain = _shallow(sampling)
    for name in _LATER:
        if not plain[name]:
            del plain[name]
    return plain


def parted_metadata(plain: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part plain metadata into what every reader takes, and its sampling parameters of `_LATER`.

    For requests that have ended only: an engine needs all parameters.
    """
    sampling = plain["sampling"]
    later = {name: sampling[name] for name in _LATER if name in sampling}
    former = {name: value for name, value in sampling.items() if name not in later}
    return {**plain, "sampling": former}, later


def joined_metadata(plain: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Join what `parted_metadata` has parted; parameters that this version does not know are left out."""
    known = {name: later[name] for name in _LATER if name in later}
    return {**plain, "sampling": {**plain["sampling"], **known}}


def slo_to_plain(slo: Slo) -> dict[str, Any]:
    """Return an objective as plain data, with its kind."""
    kind = next(name for name, kind in _SLO_KINDS.items() if isinstance(slo, kind))
    return {"kind": kind} | _shallow(slo)


def slo_from_plain(plain: Mapping[str, Any]) -> Slo:
    """Return the objective of plain data."""
    rest = dict(plain)
    return _SLO_KINDS[rest.pop("kind")](**rest)


def _shallow(value: Any) -> dict[str, Any]:
    """Return the fields of a flat dataclass; `__slots__` names them in order."""
    return {name: getattr(value, name) for name in value.__slots__}


def _metadata_fields(plain: Mapping[str, Any]) -> dict[str, Any]:
    version = plain.get("version")
    if version != SCHEMA_VERSION:
        raise UndecodableDataError(f"message has schema version {shown(version)}; expected {SCHEMA_VERSION}")
    try:
        sampling = dict(plain["sampling"])
        sampling["stop_token_ids"] = tuple(sampling["stop_token_ids"])
        sampling["eos_token_ids"] = tuple(sampling["eos_token_ids"])
        sampling["logit_bias"] = tuple((int(k), float(v)) for k, v in sampling["logit_bias"])
        answer = dict(plain["answer"])
        answer["kind"] = AnswerKind(answer["kind"])
        answer["stop"] = tuple(answer["stop"])
        return {
            "id": plain["id"],
            "cls": RequestClass(**plain["cls"]),
            "tenant": plain["tenant"],
            "slo": slo_from_plain(plain["slo"]),
            "on_miss": OnMiss(plain["on_miss"]),
            "arrival_ns": plain["arrival_ns"],
            "prompt_tokens": plain["prompt_tokens"],
            "prompt_tail": tuple(plain["prompt_tail"]),
            "sampling": Sampling(**sampling),
            "answer": Answer(**answer),
            "fingerprint": plain["fingerprint"],
            "detached": plain["detached"],
            "traceparent": str(plain.get("traceparent", "")),  # earlier versions wrote none
            "extensions": _extensions(plain),
        }
    except InvalidValueError as error:
        raise UndecodableDataError(f"message cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UndecodableDataError(f"message cannot be read: {error!r}") from error


def _extensions(plain: Mapping[str, Any]) -> RequestExtensions:
    if "extensions" not in plain:
        return NO_REQUEST_EXTENSIONS
    return extensions_from_plain(RequestExtensions, plain["extensions"])
