"""The gRPC listener of `qlm serve` as a user meets it, with the example client."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.certificates import certificate
from support.ports import free_port
from support.qlm_process import QlmProcess, emulated, serving
from support.rpc import Failure, Stream

CLIENT = Path(__file__).resolve().parents[2] / "examples/grpc_client.py"


@pytest.fixture(scope="module")
def served() -> Iterator[QlmProcess]:
    with serving(emulated("mistral-7b", grpc={"port": free_port()})) as process:
        yield process


def test_the_example_client_prints_the_answer_though_its_first_gateway_is_dead(served: QlmProcess) -> None:
    dead = f"127.0.0.1:{free_port()}"
    argv = [sys.executable, str(CLIENT), "mistral-7b", "Why is the sky blue?", dead, served.grpc_address]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout
    body = {"model": "mistral-7b", "prompt": "Why is the sky blue?", "max_tokens": 100}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=120).raise_for_status()
    assert printed == answer.json()["choices"][0]["text"] + "\n"
    metrics = httpx.get(f"{served.admin_url}/metrics", timeout=120).text
    assert 'kind="stream",model="mistral-7b"' in metrics, "both doors count in the same place"


def test_a_stop_ends_streams_so_that_they_go_on_elsewhere_and_the_process_well() -> None:
    with serving(emulated("mistral-7b", time_scale=1.0, grpc={"port": free_port()})) as process:
        with grpc.insecure_channel(process.grpc_address) as channel:
            asked = pb.GenerateRequest(model="mistral-7b", prompt="long", max_tokens=3000, ignore_eos=True)
            call = QlmStub(channel).Generate(asked)
            stream = Stream()
            while not stream.deltas:
                stream.add(next(call))
            os.kill(process.pid, signal.SIGTERM)
            with pytest.raises(grpc.RpcError) as caught:
                while True:
                    stream.add(next(call))
        while process.exit_code is None:
            time.sleep(0.02)
        assert process.exit_code == 0
    failure = Failure(caught.value)
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "gateway_stopping")


def test_what_strangers_send_leaves_nothing_but_json_in_the_log(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    port = free_port()
    listener = {"port": port, "tls": {"cert": str(cert), "key": str(key)}}
    config = emulated(
        "mistral-7b", http={"port": free_port()}, data_dir=str(tmp_path / "data"), grpc=listener
    )
    process = QlmProcess("serve", "serve", "--log-format", "json", config=config, folder=tmp_path)
    process.start()
    try:
        process.wait_ready(instances=1)
        for stranger in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\0" * 100):
            for each in (port, process.port):
                with socket.create_connection(("127.0.0.1", each)) as connection:
                    connection.sendall(stranger)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1000):
                        pass
    finally:
        process.close()
    lines = [json.loads(line) for line in process.log_file.read_text("utf-8").splitlines()]
    assert "qlm.cli" in {line["logger"] for line in lines}
