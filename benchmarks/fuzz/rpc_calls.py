"""gRPC calls by number: correct messages, mutated ones, and random bytes."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from benchmarks.fuzz.http_requests import key_of, known_id
from benchmarks.fuzz.values import TEXTS, mangled
from qlm.gateway.rpc.v1 import qlm_pb2 as pb

Metadata = tuple[tuple[str, str | bytes], ...]

GENERATE: Final = "/qlm.v1.Qlm/Generate"
STREAMS: Final = frozenset(
    {GENERATE, "/qlm.v1.Qlm/Resume", "/grpc.health.v1.Health/Watch",
     "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
     "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}
)  # fmt: skip
_OTHERS: Final = (
    "/qlm.v1.Qlm/Resume", "/qlm.v1.Qlm/Resume", "/qlm.v1.Qlm/Get", "/qlm.v1.Qlm/Get", "/qlm.v1.Qlm/Cancel",
    "/qlm.v1.Qlm/ListQueues", "/qlm.v1.Qlm/Nothing", "/qlm.v2.Qlm/Generate", "/x",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)  # fmt: skip
_INTS: Final = (0, 1, 2, 7, 100, 4096, 2**31 - 1, 2**31, 2**32 - 1)
_DOUBLES: Final = (0.0, -0.0, 1.0, 0.5, -1.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 2e9)
_TEXTS: Final = (*(each for each in TEXTS if each.isascii() or each.isprintable()), "\0", "\U0001f600" * 30)
_METADATA: Final[Sequence[tuple[str, Sequence[str | bytes]]]] = (
    ("x-qlm-deadline-ms", ("1000", "-1", "nan", "1e999", "x", "")),
    ("x-slo-ttft-ms", ("1", "inf", "0x10")),
    ("x-slo-tpot-ms", ("1", "9" * 300)),
    ("x-qlm-p-met-min", ("0.5", "2", "nan")),
    ("x-llm-d-inference-fairness-id", ("a", "t" * 101)),
    ("idempotency-key", ("k" * 300, "k")),
    ("traceparent", ("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "zz")),
    ("odd-bin", (b"\0\xff" * 20, b"")),
    ("grpc-tags-bin", (b"\xff",)),
    ("x-long", ("v" * 3000,)),
    ("user-agent", ("odd",)),
    ("content-type", ("application/json",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcCall:
    """A call.

    Attributes:
        number: Its number; with the seed, it gives the call.
        method: The path of its method.
        data: The message.
        message: The message before it was mutated; None if it was.
        metadata: Metadata.
        timeout_s: Its deadline.
    """

    number: int
    method: str
    data: bytes
    message: pb.GenerateRequest | None
    metadata: Metadata
    timeout_s: float


def rpc_call(seed: int, number: int, model: str) -> RpcCall:
    """Return the call of a number."""
    rng = random.Random(f"rpc {seed} {number}")
    method = GENERATE if rng.random() < 0.65 else rng.choice(_OTHERS)
    message = _generate(rng, seed, number, model) if method == GENERATE else None
    data = message.SerializeToString() if message is not None else _small(rng, method, seed)
    chance = rng.random()
    if chance < 0.45:
        data, message = _damaged(data, rng), None
    elif chance < 0.55:
        data, message = rng.randbytes(rng.choice((0, 1, 5, 40, 2000))), None
    return RpcCall(
        number=number,
        method=method,
        data=data,
        message=message,
        metadata=_metadata(rng),
        timeout_s=rng.choice((0.001, 0.05, 1.0)) if _brief(method, rng) else 20.0,
    )


def _brief(method: str, rng: random.Random) -> bool:
    return method.endswith("/Watch") or rng.random() < 0.04


def _generate(rng: random.Random, seed: int, number: int, model: str) -> pb.GenerateRequest:
    message = pb.GenerateRequest(
        model=model, max_tokens=rng.randint(1, 8), ignore_eos=True, resume_grace_s=0.0
    )
    prompt = f"call {seed}-{number}"
    match rng.randrange(3):
        case 0:
            message.prompt = prompt
        case 1:
            message.prompt_token_ids.ids.extend(prompt.encode())
        case _:
            message.messages.messages.add(role="user", content=prompt)
    for _ in range(rng.choice((0, 0, 1, 3))):
        rng.choice(_SETTERS)(message, rng)
    if rng.random() < 0.05:
        message.idempotency_key = key_of(seed, rng.randrange(8))
    return message


def _set_slo(message: pb.GenerateRequest, rng: random.Random) -> None:
    slo = message.slo
    for name in rng.sample(
        ("deadline_ms", "ttft_ms", "tpot_ms", "tokens_per_s", "p_met_min", "p_met"), rng.randint(0, 2)
    ):
        setattr(slo, name, rng.choice((*_DOUBLES, 5000.0)))
    if rng.random() < 0.3:
        slo.deadline_at.CopyFrom(
            Timestamp(seconds=rng.choice((0, -(2**62), 2**62)), nanos=rng.choice((0, -1, 2**31 - 1)))
        )
    slo.on_miss = rng.choice(("", "serve", "drop", "x"))


_SETTERS: Final[Sequence[Callable[[Any, random.Random], None]]] = (
    lambda m, rng: setattr(m, rng.choice(("model", "service_tier", "user", "idempotency_key")),
                        rng.choice(_TEXTS)),
    lambda m, rng: setattr(
        m, rng.choice(("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty",
                       "repetition_penalty", "resume_grace_s")), rng.choice(_DOUBLES)),
    lambda m, rng: setattr(m, rng.choice(("max_tokens", "min_tokens")), rng.choice(_INTS)),
    lambda m, rng: setattr(m, rng.choice(("top_k", "priority")),
                        rng.choice((-(2**31), -11, -1, 0, 10, 2**31 - 1))),
    lambda m, rng: setattr(m, "seed", rng.choice((-(2**63), 0, 2**63 - 1))),
    lambda m, rng: m.stop.extend(rng.choice(_TEXTS) for _ in range(rng.randint(1, 6))),
    lambda m, rng: m.stop_token_ids.extend(rng.choice(_INTS) for _ in range(rng.randint(1, 5))),
    lambda m, rng: m.logit_bias.update({rng.choice(_INTS): rng.choice(_DOUBLES)}),
    lambda m, rng: m.prompt_token_ids.ids.extend(rng.choice(_INTS) for _ in range(rng.randint(1, 9))),
    lambda m, rng: m.messages.messages.add(
        role=rng.choice(("user", "x", "")), content=rng.choice(_TEXTS), name=rng.choice(_TEXTS)),
    lambda m, rng: m.ClearField("input"),
    _set_slo,
)  # fmt: skip


def _small(rng: random.Random, method: str, seed: int) -> bytes:
    id = rng.choice((known_id(seed, rng), "", *_TEXTS))
    if method.endswith("/Resume"):
        return pb.ResumeRequest(id=id, offset=rng.choice(_INTS)).SerializeToString()
    return pb.GetRequest(id=id).SerializeToString()


def _damaged(data: bytes, rng: random.Random) -> bytes:
    match rng.randrange(5):
        case 0:
            return data + rng.choice(
                (b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 200, b"\x12\x02\xff\xfe", b"\xfa\xff\xff\xff\x0f\x01")
            )
        case 1:
            return data + b"\x22" + _varint(2 * 150) + b"\x0a\x00" * 150
        case 2:
            return data.replace(b"call", b"c\xffll")
    return mangled(data, rng)


def _varint(number: int) -> bytes:
    return bytes((number & 127 | 128, number >> 7))


def _metadata(rng: random.Random) -> Metadata:
    some = [rng.choice(_METADATA) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
    return tuple((name, rng.choice(values)) for name, values in some)
