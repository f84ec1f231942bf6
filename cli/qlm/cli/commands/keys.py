"""`qlm keys`: API keys created, listed, revoked."""

from typing import Any

import click

from qlm.cli.commands.options import print_json, talks_to_gateway
from qlm.cli.inspect.admin_client import AdminClient, segment
from qlm.cli.inspect.console import console
from qlm.cli.inspect.keys import keys_table
from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.durations import duration_s

_KEYS = "/admin/v1/keys"
_LIFETIME_MAX_S = 10 * 365 * 86_400


@click.group("keys")
def keys_command() -> None:
    """Create, list and revoke the API keys of clients (`http.api_keys: required`)."""


@keys_command.command("create")
@talks_to_gateway
@click.option("--tenant", required=True, help="Tenant of all requests made with the key.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(["infer", "admin"]),
    multiple=True,
    default=["infer"],
    show_default=True,
    help="What it is good for: calls of clients, calls of operators; may be repeated.",
)
@click.option("--expires-in", help="Time after which it is refused, such as 12h or 90d; never without it.")
def create_command(
    client: AdminClient, as_json: bool, tenant: str, scopes: tuple[str, ...], expires_in: str | None
) -> None:
    """Create an API key and show its secret, once."""
    body: dict[str, Any] = {"tenant": tenant, "scopes": list(scopes)}
    if expires_in is not None:
        body["expires_in_s"] = duration_s("--expires-in", expires_in, 1, _LIFETIME_MAX_S)
    made = client.post(_KEYS, body)
    if as_json:
        print_json(made)
        return
    click.echo(made["secret"])
    click.echo(f"{made['id']} of the tenant {tenant}; its secret is not shown again", err=True)


@keys_command.command("list")
@talks_to_gateway
def list_command(client: AdminClient, as_json: bool) -> None:
    """List all API keys, without their secrets."""
    data = client.get(_KEYS)
    if as_json:
        print_json(data)
    else:
        console().print(keys_table(data), crop=False)


@keys_command.command("revoke")
@talks_to_gateway
@click.argument("key_id")
def revoke_command(client: AdminClient, as_json: bool, key_id: str) -> None:
    """Revoke the API key KEY_ID: within 2 s no gateway accepts it; its requests go on."""
    if not key_id:
        raise InvalidValueError("KEY_ID", key_id, "the id of an API key, as `qlm keys list` lists them")
    data = client.delete(f"{_KEYS}/{segment(key_id)}")
    if as_json:
        print_json(data)
    else:
        click.echo(f"{key_id} is revoked")
