"""Odd framing: headers folded, repeated, contradictory; methods and versions that HTTP does not have."""

import random
from collections.abc import Callable, Sequence
from typing import Final

_END: Final = b"\r\n\r\n"


def misframed(data: bytes, rng: random.Random) -> bytes:
    """Change the framing of a correct request."""
    head, _, body = data.partition(_END)
    return rng.choice(_CHANGES)(head, body, rng)


def _lengths(head: bytes, body: bytes, rng: random.Random) -> bytes:
    value = rng.choice(
        (
            b"-1",
            b"+5",
            b"0x10",
            b"9" * 30,
            b"",
            b"1, 1",
            b"5;5",
            b" ",
            b"\xb2",
            b"1e3",
            b"%d" % (len(body) + 9),
            b"1",
        )
    )
    return head + b"\r\ncontent-length: " + value + _END + body


def _both(head: bytes, body: bytes, rng: random.Random) -> bytes:
    inner = rng.choice((b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"x", b""))
    coding = rng.choice(
        (b"chunked", b"Chunked", b"xchunked", b" chunked", b"chunked, identity", b"identity",
         b"gzip, chunked",
         b"chunked\r\ntransfer-encoding: x", b"\x0bchunked", b"chunked;a=b", b"'chunked'")
    )  # fmt: skip
    return head + b"\r\ntransfer-encoding: " + coding + _END + b"0\r\n\r\n" + inner + body


def _chunks(head: bytes, body: bytes, rng: random.Random) -> bytes:
    lines = [line for line in head.split(b"\r\n") if not line.startswith((b"content-length", b"transfer-"))]
    size = rng.choice(
        (b"-1", b"ffffffffffffffffff", b"5;a=b", b"5 ", b"0x5", b"g", b"", b"5\n", b"00000005", b"5")
    )
    head = b"\r\n".join((*lines, b"transfer-encoding: chunked"))
    return (
        head
        + _END
        + size
        + b"\r\n"
        + body[:5]
        + rng.choice((b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"\r\n0\r\na: b\r\n\r\n"))
    )


def _lines(head: bytes, body: bytes, rng: random.Random) -> bytes:
    extra = rng.choice(
        (b"x: 1\r\n 2", b" x: 1", b"x : 1", b": 1", b"x", b"x: \0", b"x\0: 1", b"x: 1\n", b"x: 1\ry: 2",
         b"\xff: 1",
         b"host: evil.example", b"host: [", b"host:", b"host: a b", b"host: localhost, evil", b"x: \x7f",
         b"(x): 1",
         b"host: \xff", b"host: localhost:99999999999", b"content-type: text/html",
         b"connection: close, upgrade")
    )  # fmt: skip
    first, _, rest = head.partition(b"\r\n")
    return first + b"\r\n" + extra + b"\r\n" + rest + _END + body


def _first_line(head: bytes, body: bytes, rng: random.Random) -> bytes:
    line = rng.choice(
        (b"", b"GET", b"GET /", b"GET / HTTP/9.9", b"GET / HTTP/2.0", b"PRI * HTTP/2.0", b"GET / HTTP/1.0",
         b"GET / FTP/1.1", b"GET  / HTTP/1.1", b"get / HTTP/1.1", b"G\0T / HTTP/1.1",
         b"POST /v1/completions HTTP/0.9",
         b"GET /\xff HTTP/1.1", b"GET http://evil.example/healthz HTTP/1.1", b"GET http:// HTTP/1.1",
         b"CONNECT localhost:1 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"GET * HTTP/1.1", b"GET healthz HTTP/1.1",
         b"GET // HTTP/1.1", b"GET /#x HTTP/1.1", b"SOURCE / ICE/1.0", b"\x16\x03\x01\x02", b"\xff" * 20)
    )  # fmt: skip
    return line + b"\r\n" + head.partition(b"\r\n")[2] + _END + body


def _ends(head: bytes, body: bytes, rng: random.Random) -> bytes:
    whole = head + _END + body
    match rng.randrange(4):
        case 0:
            return whole[: rng.randrange(len(whole))]
        case 1:
            return (head + _END).replace(b"\r\n", b"\n") + body
        case 2:
            return b"\r\n" * rng.randint(1, 5) + whole
    return whole + whole + whole[: rng.randrange(len(whole))]  # pipelined


def _bytes(head: bytes, body: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(head))
    return head[:at] + rng.randbytes(rng.randint(1, 4)) + head[at + rng.randrange(3) :] + _END + body


_CHANGES: Final[Sequence[Callable[[bytes, bytes, random.Random], bytes]]] = (
    _lengths, _both, _chunks, _lines, _lines, _first_line, _ends, _bytes
)  # fmt: skip
