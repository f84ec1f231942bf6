"""Options and error handling shared by commands."""

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from qlm.cli.file_errors import one_line
from qlm.cli.inspect.admin_client import AdminClient, RefusedValueError
from qlm.domain.errors import InvalidValueError, QlmError

_DEFAULT_URL: Final = "http://127.0.0.1:8090"

URL: Final = click.option(
    "--url",
    envvar="QLM_URL",
    help=f"Address of a gateway for operators (or QLM_URL); without it, that of --config, or {_DEFAULT_URL}.",
)

CONFIG: Final = click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Configuration file of the gateway: its section `admin` has the address and the token.",
)


SEED_MAX: Final = 2**63 - 1
SEED: Final = click.IntRange(min=0, max=SEED_MAX)
"""Seeds that fit a JSON integer of a summary."""


def talks_to_gateway(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for the gateway and --json, passed as `client` and `as_json`; errors become one line."""

    @URL
    @CONFIG
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def wrapped(url: str | None, config_file: Path | None, **arguments: Any) -> None:
        with errors_in_one_line():
            client = admin_client(url, config_file)
        with errors_in_one_line(code=1):
            command(client=client, **arguments)

    return wrapped


def admin_client(url: str | None, config_file: Path | None) -> AdminClient:
    """Return the client of the gateway at an address, or of a configuration; QLM_ADMIN_TOKEN is its token.

    Raises:
        QlmError: The address or the configuration cannot be used.
    """
    token = os.environ.get("QLM_ADMIN_TOKEN") or None
    if config_file is None:
        return AdminClient(url or _DEFAULT_URL, token)
    # Imported here: reading a configuration takes longer than most commands.
    from qlm.cli.config.settings import load_config

    admin = load_config(config_file, {}).admin
    return AdminClient(url or admin.url, admin.token)


@contextmanager
def errors_in_one_line(*, code: int = 2) -> Iterator[None]:
    """End the process with one line about an error.

    The exit status is `code` for one of QLM, but 2 for a value that was asked for, and 1 for the file system.
    """
    try:
        yield
    except (InvalidValueError, RefusedValueError) as error:
        click.echo(f"qlm: {error}", err=True)
        sys.exit(2)
    except QlmError as error:
        click.echo(f"qlm: {error}", err=True)
        sys.exit(code)
    except OSError as error:
        click.echo(one_line(error), err=True)
        sys.exit(1)


def print_json(data: Any) -> None:
    """Print data as indented JSON."""
    click.echo(json.dumps(data, indent=2))
