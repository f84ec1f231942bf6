"""Options and error handling shared by commands."""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from qlm.cli.inspect.admin_client import AdminClient
from qlm.domain.errors import QlmError
from qlm.domain.shown import cut


def talks_to_gateway(command: Callable[..., None]) -> Callable[..., None]:
    """Add --url and --json, passed as `client` and `as_json`; errors become one line and exit code 1."""

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
        with errors_in_one_line(code=1):
            command(client=AdminClient(url), **arguments)

    return wrapped


@contextmanager
def errors_in_one_line(*, code: int = 2) -> Iterator[None]:
    """End the process with one line about an error: `code` for one of QLM, 1 for the file system."""
    try:
        yield
    except QlmError as error:
        click.echo(f"qlm: {error}", err=True)
        sys.exit(code)
    except OSError as error:
        known = [cut(str(each)) for each in (error.filename, error.strerror) if each is not None]
        click.echo(f"qlm: {': '.join(known) or str(error) or type(error).__name__}", err=True)
        sys.exit(1)


def print_json(data: Any) -> None:
    """Print data as indented JSON."""
    click.echo(json.dumps(data, indent=2))
