"""Commands that change a running QLM: cancel, drain."""

import click

from qlm.cli.admin_client import AdminClient, segment
from qlm.cli.commands.options import print_json, talks_to_gateway
from qlm.domain.errors import InvalidValueError


@click.command("cancel")
@talks_to_gateway
@click.argument("request_id")
def cancel_command(client: AdminClient, as_json: bool, request_id: str) -> None:
    """End a request: at once if it waits, as soon as its engine has let go of it if it runs."""
    if not request_id:
        raise InvalidValueError("REQUEST_ID", request_id, "the id of a request, as `qlm requests` lists them")
    data = client.delete(f"/v1/requests/{segment(request_id)}")
    if as_json:
        print_json(data)
    elif data["outcome"] is not None:
        click.echo(f"{request_id} has ended: {data['outcome']}")
    else:
        click.echo(f"{request_id} is being cancelled on {data['instance']}")


@click.command("drain")
@talks_to_gateway
@click.argument("instance")
def drain_command(client: AdminClient, as_json: bool, instance: str) -> None:
    """Let an instance give its work back to the queue and leave."""
    if not instance:
        raise InvalidValueError("INSTANCE", instance, "the id of an instance, as `qlm instances` lists them")
    data = client.post(f"/admin/v1/instances/{segment(instance)}/drain")
    if as_json:
        print_json(data)
    else:
        click.echo(f"{instance} is draining: `qlm instances` no longer lists it when it is done")


COMMANDS = (cancel_command, drain_command)
