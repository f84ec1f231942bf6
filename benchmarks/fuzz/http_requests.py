"""HTTP requests by number: well framed with odd contents, or with odd framing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.fuzz import bodies
from benchmarks.fuzz.bodies import Api
from benchmarks.fuzz.framing import misframed
from benchmarks.fuzz.paths import other_target
from benchmarks.fuzz.values import NUMBERS, written
from qlm.gateway.sessions.idempotency import keyed_id

Header = tuple[bytes, bytes]

KEYS: Final = 64
"""Idempotency-Keys in use; requests with different bodies share one."""

_HTTP_NUMBERS: Final = (
    *(each.encode() for each in NUMBERS),
    b"",
    b" 5",
    b"5, 6",
    b"\xb2",
    b"0.01",
    b"2592000000",
)
_NAMED: Final[Sequence[tuple[bytes, Sequence[bytes]]]] = (
    (b"x-qlm-deadline-ms", _HTTP_NUMBERS),
    (b"x-llm-d-slo-ttft-ms", _HTTP_NUMBERS),
    (b"x-slo-ttft-ms", _HTTP_NUMBERS),
    (b"x-llm-d-slo-tpot-ms", _HTTP_NUMBERS),
    (b"x-slo-tpot-ms", _HTTP_NUMBERS),
    (b"x-qlm-p-met-min", _HTTP_NUMBERS),
    (b"x-qlm-stream", (b"plain", b"resumable", b"", b"PLAIN", b"\xff")),
    (b"prefer", (b"respond-async", b"RESPOND-ASYNC, wait=5", b"wait=1", b"\xff")),
    (b"last-event-id", _HTTP_NUMBERS),
    (b"x-llm-d-inference-fairness-id", (b"", b"one", b"t" * 100, b"t" * 101, b"\xe9\xff", b"a\tb")),
    (b"x-gateway-inference-fairness-id", (b"two", b"t" * 2000)),
    (b"traceparent", (b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"00-0-0-0", b"\xff" * 55, b"")),
    (b"x-request-id", (b"", b"mine", b"x" * 3000, b"\xff")),
    (b"expect", (b"100-continue", b"200-ok")),
    (b"accept", (b"", b"text/html;q=nan", b"*/*;" * 300)),
    (b"accept-encoding", (b"gzip, identity;q=0", b"\xff")),
    (b"content-encoding", (b"gzip", b"br", b"identity")),
    (b"range", (b"bytes=0-1", b"bytes=-1-", b"x")),
    (b"if-none-match", (b"*", b'"x"')),
    (b"cookie", (b"a=b; " * 100, b"\xff")),
    (b"authorization", (b"Bearer x", b"Basic \xff", b"")),
    (b"connection", (b"keep-alive", b"close", b"upgrade", b"x-qlm-deadline-ms")),
    (b"upgrade", (b"h2c", b"websocket", b"TLS/1.0")),
    (b"te", (b"trailers",)),
    (b"forwarded", (b'for="[::1]:x";host=evil',)),
    (b"x-forwarded-host", (b"evil.example",)),
    (b"x-http-method-override", (b"DELETE",)),
)
_TYPES: Final = (
    b"application/json; charset=utf-8", b"APPLICATION/JSON", b"application/json;charset=utf-16",
    b"text/plain",
    b"application/json, text/plain", b"multipart/form-data; boundary=b",
    b"application/x-www-form-urlencoded", b"",
    b"application/problem+json", b"\xff", b" application/json", b"application/json\t", b"application/jsonx",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request as bytes.

    Attributes:
        number: Its number; with the seed, it gives the request.
        data: The bytes.
        framed: Its framing is correct, so it must have one answer, and others may follow on its connection.
        api: API of its answer, if it may have one.
        body: Its body.
    """

    number: int
    data: bytes
    framed: bool = True
    api: Api | None = None
    body: bytes = b""


def http_request(seed: int, number: int, model: str, host: bytes) -> HttpRequest:
    """Return the request of a number."""
    rng = random.Random(f"http {seed} {number}")
    name = f"{seed}-{number}"
    chance = rng.random()
    if chance < 0.12:
        return HttpRequest(number=number, data=misframed(_post(rng, model, name, host)[0], rng), framed=False)
    if chance < 0.32:
        return HttpRequest(number=number, data=_other(rng, seed, host))
    data, api, body = _post(rng, model, name, host, seed)
    return HttpRequest(number=number, data=data, api=api, body=body)


def key_of(seed: int, number: int) -> str:
    """Return an Idempotency-Key of a seed."""
    return f"key-{seed}-{number}"


def known_id(seed: int, rng: random.Random) -> str:
    """Return the id of a request that has been or may be sent."""
    return keyed_id("default", key_of(seed, rng.randrange(KEYS)), 0)


def _post(rng: random.Random, model: str, name: str, host: bytes, seed: int = 0) -> tuple[bytes, Api, bytes]:
    api: Api = rng.choice(("completions", "chat/completions"))
    headers: list[Header] = []
    if rng.random() < 0.15:
        key = rng.randrange(KEYS)
        headers.append((b"idempotency-key", key_of(seed, key).encode()))
        if rng.random() < 0.7:  # a retry: the same body under the same key
            same = random.Random(f"keyed {seed} {key}")
            api, name = "completions", f"{seed}-key-{key}"
            return _message(f"/v1/{api}", headers, _body(same, api, model, name, kept=True), rng, host, api)
    return _message(f"/v1/{api}", headers, _body(rng, api, model, name), rng, host, api)


def _body(rng: random.Random, api: Api, model: str, name: str, *, kept: bool = False) -> bytes:
    body: Any = bodies.correct(api, model, name, rng)
    chance = rng.random()
    if kept or chance < 0.25:
        return bodies.encoded(body, rng) if not kept else written(body, escaped=True).encode()
    return bodies.noise(rng) if chance < 0.32 else bodies.encoded(bodies.mutated(body, rng), rng)


def _message(
    path: str, headers: list[Header], body: bytes, rng: random.Random, host: bytes, api: Api
) -> tuple[bytes, Api, bytes]:
    content_type = b"application/json" if rng.random() < 0.9 else rng.choice(_TYPES)
    headers += [(b"content-type", content_type), *_odd_headers(rng)]
    if rng.random() < 0.1:
        size = rng.choice((1, 7, 1000))
        chunks = [body[at : at + size] for at in range(0, min(len(body), 200 * size), size)]
        shown = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
        body = b"".join(chunks)
        headers.append((b"transfer-encoding", b"chunked"))
    else:
        shown = body
        headers.append((b"content-length", b"%d" % len(body)))
    return _head(b"POST", path.encode(), headers, host) + shown, api, body


def _other(rng: random.Random, seed: int, host: bytes) -> bytes:
    method, target = other_target(rng, known_id(seed, rng))
    return _head(method, target, _odd_headers(rng), host)


def _odd_headers(rng: random.Random) -> list[Header]:
    headers = []
    for _ in range(rng.choice((0, 0, 1, 2, 5))):
        name, values = rng.choice(_NAMED)
        headers += [(name, rng.choice(values)) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if rng.random() < 0.03:
        headers += [(b"x-%d" % number, b"v" * rng.randrange(40)) for number in range(rng.choice((5, 40)))]
    if rng.random() < 0.02:
        headers.append((b"origin", rng.choice((b"null", b"https://evil.example", b"\xff"))))
    return headers


def _head(method: bytes, target: bytes, headers: Sequence[Header], host: bytes) -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", b"host: " + host]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"
