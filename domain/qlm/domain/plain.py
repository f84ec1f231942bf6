"""Requests and cards as plain data (dicts, lists, numbers, strings): the schema of messages and records.

Each request is written twice on its way in, so the fields are read by name: `dataclasses.asdict` copies
deeply and takes ten times as long.
"""

from collections.abc import Mapping
from typing import Any, Final

from qlm.domain.errors import StoreCorruptError
from qlm.domain.group import RequestClass
from qlm.domain.request import Answer, AnswerKind, Request, RequestCard
from qlm.domain.sampling import Sampling
from qlm.domain.slo import BatchSlo, DeadlineSlo, OnMiss, ReadingSlo, Slo, TokenSlo

SCHEMA_VERSION: Final = 1
"""Version of the schema written; a reader refuses any other."""

_SLO_KINDS: Final[dict[str, type[Slo]]] = {
    "deadline": DeadlineSlo,
    "token": TokenSlo,
    "reading": ReadingSlo,
    "batch": BatchSlo,
}


def card_to_plain(card: RequestCard) -> dict[str, Any]:
    """Write a card (or a request, without its prompt) as plain data."""
    plain: dict[str, Any] = {
        "version": SCHEMA_VERSION,
        "id": card.id,
        "cls": class_to_plain(card.cls),
        "tenant": card.tenant,
        "slo": slo_to_plain(card.slo),
        "on_miss": card.on_miss.value,
        "arrival_ns": card.arrival_ns,
        "prompt_tokens": card.prompt_tokens,
        "prompt_tail": list(card.prompt_tail),
        "sampling": _shallow(card.sampling),
        "answer": _shallow(card.answer),
        "fingerprint": card.fingerprint,
        "detached": card.detached,
    }
    if card.traceparent:
        plain["traceparent"] = card.traceparent
    return plain


def card_from_plain(plain: Mapping[str, Any]) -> RequestCard:
    """Read a card.

    Raises:
        StoreCorruptError: The schema version is not ours, or a field is missing or wrong.
    """
    return RequestCard(**_card_fields(plain))


def request_to_plain(request: Request) -> dict[str, Any]:
    """Write a whole request as plain data."""
    return card_to_plain(request) | {"prompt_ids": list(request.prompt_ids)}


def request_from_plain(plain: Mapping[str, Any]) -> Request:
    """Read a whole request.

    Raises:
        StoreCorruptError: The schema version is not ours, or a field is missing or wrong.
    """
    fields = _card_fields(plain)
    try:
        return Request(prompt_ids=tuple(plain["prompt_ids"]), **fields)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorruptError(f"message cannot be read: {error!r}") from error


def class_to_plain(cls: RequestClass) -> dict[str, Any]:
    """Write a class; that it is late only if it is: older readers refuse what they do not know."""
    plain = _shallow(cls)
    if not cls.late:
        del plain["late"]
    return plain


def slo_to_plain(slo: Slo) -> dict[str, Any]:
    """Write an objective with its kind."""
    kind = next(name for name, kind in _SLO_KINDS.items() if isinstance(slo, kind))
    return {"kind": kind} | _shallow(slo)


def slo_from_plain(plain: Mapping[str, Any]) -> Slo:
    """Read an objective written by `slo_to_plain`."""
    rest = dict(plain)
    return _SLO_KINDS[rest.pop("kind")](**rest)


def _shallow(value: Any) -> dict[str, Any]:
    """Read the fields of a flat dataclass; `__slots__` names them in order."""
    return {name: getattr(value, name) for name in value.__slots__}


def _card_fields(plain: Mapping[str, Any]) -> dict[str, Any]:
    version = plain.get("version")
    if version != SCHEMA_VERSION:
        raise StoreCorruptError(f"message has schema version {version!r}; expected {SCHEMA_VERSION}")
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
        }
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorruptError(f"message cannot be read: {error!r}") from error
