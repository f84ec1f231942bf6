"""`qlm batches`: batches of all tenants listed, shown, cancelled, paused, resumed."""

import time
from typing import Any

import click

from qlm.cli.commands.options import print_json, talks_to_gateway
from qlm.cli.inspect.admin_client import AdminClient, segment
from qlm.cli.inspect.batches import batch_table, batches_table
from qlm.cli.inspect.console import console
from qlm.domain.errors import InvalidValueError

_BATCHES = "/admin/v1/batches"


@click.group("batches")
def batches_command() -> None:
    """List, show, cancel, pause and resume the batches of clients."""


@batches_command.command("list")
@talks_to_gateway
@click.option("--tenant", help="Only of this tenant.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Largest number shown."
)
def list_command(client: AdminClient, as_json: bool, tenant: str | None, limit: int) -> None:
    """List batches with their progress, newest first."""
    data = client.get(_BATCHES, tenant=tenant, limit=limit)
    if as_json:
        print_json(data)
    else:
        console().print(batches_table(data, time.time()), crop=False)


@batches_command.command("show")
@talks_to_gateway
@click.argument("batch_id")
def show_command(client: AdminClient, as_json: bool, batch_id: str) -> None:
    """Show the batch BATCH_ID: progress, pace, and what is wrong with its input."""
    data = client.get(_path(batch_id))
    if as_json:
        print_json(data)
    else:
        console().print(batch_table(data, time.time()), crop=False)


@batches_command.command("cancel")
@talks_to_gateway
@click.argument("batch_id")
def cancel_command(client: AdminClient, as_json: bool, batch_id: str) -> None:
    """Cancel the batch BATCH_ID: lines that have an answer stay."""
    _change(client, as_json, batch_id, "cancel", "is being cancelled")


@batches_command.command("pause")
@talks_to_gateway
@click.argument("batch_id")
def pause_command(client: AdminClient, as_json: bool, batch_id: str) -> None:
    """Pause the batch BATCH_ID: no further lines begin; its window goes on."""
    _change(client, as_json, batch_id, "pause", "is paused; lines in work end, and its window goes on")


@batches_command.command("resume")
@talks_to_gateway
@click.argument("batch_id")
def resume_command(client: AdminClient, as_json: bool, batch_id: str) -> None:
    """Go on with the paused batch BATCH_ID."""
    _change(client, as_json, batch_id, "resume", "goes on")


def _change(client: AdminClient, as_json: bool, batch_id: str, what: str, done: str) -> None:
    data: Any = client.post(f"{_path(batch_id)}/{what}")
    if as_json:
        print_json(data)
    else:
        click.echo(f"{batch_id} {done}")


def _path(batch_id: str) -> str:
    if not batch_id:
        raise InvalidValueError("BATCH_ID", batch_id, "the id of a batch, as `qlm batches list` lists them")
    return f"{_BATCHES}/{segment(batch_id)}"
