"""Commands that change a running QLM: cancel, drain, and `requests retry` and `drop` for dead letters."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import click

from qlm.cli.commands.options import print_json, talks_to_gateway
from qlm.cli.inspect.admin_client import AdminClient, AdminError, segment
from qlm.domain.errors import InvalidValueError

_DEAD: Final = "/admin/v1/dead"


def request_path(request_id: str) -> str:
    """Return the path of a request at a gateway.

    Raises:
        InvalidValueError: The id is empty.
    """
    if not request_id:
        raise InvalidValueError("REQUEST_ID", request_id, "the id of a request, as `qlm requests` lists them")
    return f"/admin/v1/requests/{segment(request_id)}"


@click.command("cancel")
@talks_to_gateway
@click.argument("request_id")
def cancel_command(client: AdminClient, as_json: bool, request_id: str) -> None:
    """Cancel a request: at once if it waits, else when its engine has released it."""
    data = client.post(f"{request_path(request_id)}/cancel")
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
    """Return the work of an instance to the queue and shut its agent down.

    What restarts each process that ends, as Kubernetes does, starts the agent again at once: drain the node
    there.
    """
    if not instance:
        raise InvalidValueError("INSTANCE", instance, "the id of an instance, as `qlm instances` lists them")
    data = client.post(f"/admin/v1/instances/{segment(instance)}/drain")
    if as_json:
        print_json(data)
    else:
        click.echo(f"{instance} is draining: `qlm instances` no longer lists it when it is done")


_ID: Final = click.argument("id", required=False)
_DEAD_AT: Final = click.option(
    "--dead-at", "position", type=click.IntRange(1), help="The letter in this line of `qlm requests --dead`."
)
_YES: Final = click.option("--yes", is_flag=True, help="Do not ask before deleting.")


@click.command("retry")
@talks_to_gateway
@_ID
@click.option("--all", "every", is_flag=True, help="All dead letters; unreadable ones stay.")
@_DEAD_AT
@click.option(
    "--drop", is_flag=True, help="Delete instead, as `qlm requests drop` does, which replaces this."
)
@_YES
def retry_command(
    client: AdminClient,
    as_json: bool,
    id: str | None,
    every: bool,
    position: int | None,
    drop: bool,
    yes: bool,
) -> None:
    """Put a dead letter back into its class queue. ID is the letter's id, or that of its request.

    If the request has ended meanwhile, or is running, the letter is only removed.
    """
    if drop:
        _drop(client, as_json, id, every, position, yes)
        return
    one = _one_of(client, id, every, position)
    if one is None:
        _retry_all(client, as_json)
        return
    _print_settled(client.post(f"{_DEAD}/{segment(one)}/retry"), as_json)


@click.command("drop")
@talks_to_gateway
@_ID
@click.option("--all", "every", is_flag=True, help="All dead letters, unreadable ones, too.")
@_DEAD_AT
@_YES
def drop_command(
    client: AdminClient, as_json: bool, id: str | None, every: bool, position: int | None, yes: bool
) -> None:
    """Delete a dead letter for good. ID is the letter's id, or that of its request."""
    _drop(client, as_json, id, every, position, yes)


def _drop(
    client: AdminClient, as_json: bool, id: str | None, every: bool, position: int | None, yes: bool
) -> None:
    one = _one_of(client, id, every, position)
    if one is None:
        total = _total(client)
        if total:
            _confirm(f"Delete all {total} dead letters for good?", yes)
        _print_counts(*_settle_all(total, partial(client.delete, _DEAD)), as_json)
        return
    _confirm(f"Delete dead letter {one} for good?", yes)
    _print_settled(client.delete(f"{_DEAD}/{segment(one)}"), as_json)


def _retry_all(client: AdminClient, as_json: bool) -> None:
    done, left = _settle_all(_total(client), partial(client.post, f"{_DEAD}/retry"))
    _print_counts(done, left, as_json)
    if left and not as_json:
        click.echo(
            "the rest cannot be read: `qlm requests --dead` shows why, `qlm requests drop --all` deletes them"
        )


def _one_of(client: AdminClient, id: str | None, every: bool, position: int | None) -> str | None:
    """Return the id of the letter that is meant; None for all of them."""
    if (bool(id), every, position is not None).count(True) != 1:
        raise click.UsageError("expected one of ID, --all and --dead-at N")
    return None if every else id or _letter_id_at(client, position or 1)


def _total(client: AdminClient) -> int:
    return int(client.get(_DEAD, limit=1)["total"])


def _settle_all(total: int, settle_some: Callable[[], dict[str, Any]]) -> tuple[Counter[str], int]:
    """Return how many letters got which result, and how many are left."""
    done: Counter[str] = Counter()
    left = total
    # Stop after as many as there were: a requeued message may become a dead letter again at once.
    while done.total() < total:
        some = settle_some()
        left = some.pop("left")
        if not sum(some.values()):
            break
        done.update(some)
    return done, left


def _print_settled(data: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(data)
        return
    for each in data["settled"]:
        click.echo(_settled_line(each))


def _print_counts(done: Counter[str], left: int, as_json: bool) -> None:
    if as_json:
        print_json({what: done[what] for what in ("queued", "removed", "deleted")} | {"left": left})
        return
    counts = [f"{done[what]} {word}" for what, word in _RESULT_WORDS.items() if done[what]]
    click.echo(f"{', '.join(counts) or 'nothing to do'}; {left} left")


_RESULT_WORDS = {"queued": "put back", "removed": "removed (running or ended)", "deleted": "deleted"}


def _letter_id_at(client: AdminClient, position: int) -> str:
    data = client.get(_DEAD, limit=position)
    if position > len(data["letters"]):
        raise AdminError(
            f"--dead-at is {position}; expected a line of `qlm requests --dead`, 1 to {data['total']}"
        )
    return str(data["letters"][position - 1]["id"])


def _settled_line(each: dict[str, Any]) -> str:
    what = {
        "queued": f"request {each['request']} waits again",
        "removed": "removed",
        "deleted": "deleted",
    }[each["result"]]
    return f"{each['id']}: {what}" + (f" ({each['why']})" if each["why"] else "")


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        click.confirm(question, abort=True, err=True)
