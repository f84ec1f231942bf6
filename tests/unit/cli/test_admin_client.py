"""Ids in paths."""

import pytest
from click.testing import CliRunner

from qlm.cli.inspect.admin_client import segment
from qlm.cli.main import main

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize("command", [("requests",), ("cancel",), ("drain",), ("plan", "explain")])
def test_an_odd_id_is_asked_for_like_any_other(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*command, "a b/../c?d#e", "--url", NOBODY])
    assert done.exit_code == 1
    assert f"no QLM gateway answers at {NOBODY}" in done.output


def test_a_segment_is_one_part_of_a_path() -> None:
    assert segment("a b/c?d") == "a%20b%2Fc%3Fd"


@pytest.mark.parametrize(("command", "name"), [("cancel", "REQUEST_ID"), ("drain", "INSTANCE")])
def test_an_empty_id_is_refused_by_name(command: str, name: str) -> None:
    done = CliRunner().invoke(main, [command, "", "--url", NOBODY])
    assert done.exit_code == 1
    assert done.output.startswith(f"qlm: {name} is ''; expected the id of ")


def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    done = CliRunner().invoke(main, ["doctor", "--url", "http://me:secret@127.0.0.1:9"])
    assert done.exit_code == 2, "a wrong option"
    assert "expected an address such as http://127.0.0.1:8090, without user and password" in done.output
    assert "secret" not in done.output
