"""Options and error handling shared by the commands that talk to a gateway."""

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import click

from qlm.cli.admin_client import AdminClient
from qlm.domain.errors import QlmError


def talks_to_gateway(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `client` (from --url) and `as_json`; its errors become one line and exit 1."""

    @click.option(
        "--url",
        default="http://127.0.0.1:8000",
        envvar="QLM_URL",
        show_default=True,
        help="Address of a gateway (or QLM_URL).",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def wrapped(url: str, **arguments: Any) -> None:
        try:
            command(client=AdminClient(url), **arguments)
        except QlmError as error:
            click.echo(f"qlm: {error}", err=True)
            sys.exit(1)

    return wrapped


def print_json(data: Any) -> None:
    """Print data as indented JSON."""
    click.echo(json.dumps(data, indent=2))
