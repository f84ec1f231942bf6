"""Pictures as clients send them, and a server on loopback that has them."""

import base64
import contextlib
import http.server
import struct
import threading
import zlib
from collections.abc import Iterator

SIDE = 24


def png(colour: tuple[int, int, int]) -> bytes:
    """Return a PNG of a square, one corner of which has another colour."""
    lines = b"".join(
        b"\0" + b"".join(bytes(colour if x + y > SIDE // 2 else colour[::-1]) for x in range(SIDE))
        for y in range(SIDE)
    )
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, chunks))


def _chunk(chunk: tuple[bytes, bytes]) -> bytes:
    kind, data = chunk
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_url(data: bytes, kind: str = "image/png") -> str:
    """Return data as a `data:` URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


RED, GREEN = (png(colour) for colour in ((220, 30, 10), (20, 190, 60)))


@contextlib.contextmanager
def served(files: dict[str, bytes], redirects: dict[str, str] | None = None) -> Iterator[str]:
    """Serve files by their path, and give the address; `/to/NAME` redirects to `/NAME`."""
    elsewhere = redirects or {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            if name in elsewhere or self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("location", elsewhere.get(name, self.path.removeprefix("/to")))
                self.send_header("content-length", "0")
                self.end_headers()
                return
            data = files.get(name)
            self.send_response(404 if data is None else 200)
            self.send_header("content-type", "image/png")
            self.send_header("content-length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
