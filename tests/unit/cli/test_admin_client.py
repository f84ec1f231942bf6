"""Ids in paths."""

import os
import socket
import threading

import pytest
from click.testing import CliRunner

from qlm.cli.inspect.admin_client import segment
from qlm.cli.main import main

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize("id", ["a b/../c?d#e", os.fsdecode(b"a\xff")])
@pytest.mark.parametrize(
    "command", [("requests",), ("cancel",), ("drain",), ("plan", "explain"), ("requests", "--model")]
)
def test_an_odd_id_is_asked_for_like_any_other(command: tuple[str, ...], id: str) -> None:
    done = CliRunner().invoke(main, [*command, id, "--url", NOBODY])
    assert done.exit_code == 1
    assert f"no QLM gateway answers at {NOBODY}" in done.output


NO_HTTP = "what listens there does not speak HTTP; the port of a gateway for gRPC does not"
NO_JSON = "its answer is not JSON"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", NO_HTTP),
        (bytes.fromhex("00001e0400000000000003000003e8000400400000"), NO_HTTP),  # HTTP/2, as gRPC begins
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n<p>", NO_JSON),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n\xff", NO_JSON),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{",
            "'IncompleteRead(1 bytes read, 89 more expected)'",
        ),
    ],
)
def test_a_server_that_speaks_otherwise_is_no_gateway(answer: bytes, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answers() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        server = threading.Thread(target=answers)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = CliRunner().invoke(main, ["queues", "--url", url])
        server.join()
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert done.output.startswith(f"qlm: no QLM gateway answers at {url} ({reason}); ")
    assert done.output.count("\n") == 1


def test_an_address_with_a_space_is_refused_before_it_is_asked() -> None:
    done = CliRunner().invoke(main, ["queues", "--url", f"{NOBODY}/a b"])
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    expected = "an address such as http://127.0.0.1:8090, without user and password"
    assert done.output == f"qlm: --url is '{NOBODY}/a b'; expected {expected}\n"


def test_a_segment_is_one_part_of_a_path() -> None:
    assert segment("a b/c?d") == "a%20b%2Fc%3Fd"


@pytest.mark.parametrize(("command", "name"), [("cancel", "REQUEST_ID"), ("drain", "INSTANCE")])
def test_an_empty_id_is_refused_by_name(command: str, name: str) -> None:
    done = CliRunner().invoke(main, [command, "", "--url", NOBODY])
    assert done.exit_code == 2
    assert done.output.startswith(f"qlm: {name} is ''; expected the id of ")


@pytest.mark.parametrize("token", ["secret-of-operators\n", "secret of operators", "sécret-of-operators"])
@pytest.mark.parametrize("command", ["queues", "doctor", "plan show"])
def test_a_token_that_no_request_can_carry_is_refused_without_showing_it(
    command: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QLM_ADMIN_TOKEN", token)
    done = CliRunner().invoke(main, [*command.split(), "--url", NOBODY])
    assert (done.exit_code, done.output) == (
        2,
        "qlm: QLM_ADMIN_TOKEN is 'no token'; expected ASCII characters without spaces, in one line\n",
    )


def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    done = CliRunner().invoke(main, ["doctor", "--url", "http://me:secret@127.0.0.1:9"])
    assert done.exit_code == 2, "a wrong option"
    assert "expected an address such as http://127.0.0.1:8090, without user and password" in done.output
    assert "secret" not in done.output
