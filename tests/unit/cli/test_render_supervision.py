"""A render tier that is started by a gateway: restarts, their pauses and addresses, and its stop."""

import sys
from pathlib import Path

import pytest

from qlm.cli.config.settings import Config, parse_config
from qlm.cli.rendering.supervision import Restarts
from qlm.cli.rendering.tiers import render_tiers
from qlm.gateway.api.errors import ApiError
from support.gateway import SystemClock, until

PROGRAM = f"""#!{sys.executable}
import http.server, pathlib, signal, sys, time

folder = pathlib.Path(sys.argv[0]).parent
port = sys.argv[sys.argv.index("--port") + 1]
with (folder / "ports").open("a") as ports:
    ports.write(port + "\\n")
if (folder / "ends-once").exists():
    (folder / "ends-once").unlink()
    sys.exit(3)

def stop(*of_signal):
    time.sleep(0.8)  # longer than tasks get by default: only a grace of its own lets it end
    (folder / "stopped").touch()
    sys.exit(0)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"token_ids": [1]}}')

signal.signal(signal.SIGTERM, stop)
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
SOON = Restarts(pause_s=0.01)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    program = tmp_path / "vllm"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    raw = {
        "data_dir": str(tmp_path / "data"),
        "models": [{"id": "a", "engine": "vllm", "path": str(tmp_path), "render": {}}],
        "instances": [{"id": "i", "accelerator": "A100", "models": ["a"]}],
        "vllm": {"python": str(tmp_path / "python")},
    }
    return parse_config(raw, "test")


async def test_a_tier_that_ends_serves_again_at_another_address_and_gets_its_grace_at_the_stop(
    config: Config, tmp_path: Path
) -> None:
    (tmp_path / "ends-once").touch()
    async with render_tiers(config, SystemClock(), SOON) as tiers:
        client = tiers["a"].client

        async def answers() -> bool:
            try:
                return bool(await client.render({}))
            except ApiError:
                return False

        await until(answers)
        first, second = (tmp_path / "ports").read_text().split()
        assert first != second
        assert client.url == f"http://127.0.0.1:{second}"
    assert (tmp_path / "stopped").exists()


async def test_a_tier_that_cannot_be_started_is_tried_again(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config.data_dir.write_text("a file in place of the folder")
    async with render_tiers(config, SystemClock(), SOON):
        await until(lambda: caplog.text.count("the render tier of a cannot be run") > 1)
        config.data_dir.unlink()
        await until((tmp_path / "ports").exists)


def test_pauses_grow_and_begin_anew_after_a_steady_run() -> None:
    restarts = Restarts(pause_s=1, pause_max_s=5, steady_s=100)
    pause_s, pauses = None, []
    for ran_s in (500, 1, 1, 1, 1, 99, 100, 1):
        pause_s = restarts.next_pause_s(pause_s, ran_s)
        pauses.append(pause_s)
    assert pauses == [1, 2, 4, 5, 5, 5, 1, 2]
