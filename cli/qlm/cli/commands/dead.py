"""`qlm requests retry`: dead letters put back into their queues, or deleted."""

from collections import Counter
from typing import Any

import click

from qlm.cli.admin_client import AdminClient, AdminError, segment
from qlm.cli.commands.options import print_json, talks_to_gateway

DEAD = "/admin/v1/dead"


@click.command("retry")
@talks_to_gateway
@click.argument("id", required=False)
@click.option("--all", "every", is_flag=True, help="All dead letters; what cannot be read stays.")
@click.option(
    "--dead-at", "position", type=click.IntRange(1), help="The one in this line of `qlm requests --dead`."
)
@click.option("--drop", is_flag=True, help="Delete for good instead of putting back.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
def retry_command(
    client: AdminClient,
    as_json: bool,
    id: str | None,
    every: bool,
    position: int | None,
    drop: bool,
    yes: bool,
) -> None:
    """Put a dead letter back into its class queue; ID is its own, or that of its request.

    If its request has ended meanwhile, or runs, the letter is only removed.
    """
    if (bool(id), every, position is not None).count(True) != 1:
        raise click.UsageError("expected one of ID, --all and --dead-at N")
    if every:
        _settle_all(client, drop, yes, as_json)
        return
    one = id or _id_at(client, position or 1)
    if drop:
        _ask(f"Delete dead letter {one} for good?", yes)
    path = f"{DEAD}/{segment(one)}"
    data = client.delete(path) if drop else client.post(f"{path}/retry")
    if as_json:
        print_json(data)
    else:
        for each in data["settled"]:
            click.echo(_sentence(each))


def _settle_all(client: AdminClient, drop: bool, yes: bool, as_json: bool) -> None:
    total = client.get(DEAD, limit=1)["total"]
    if drop and total:
        _ask(f"Delete all {total} dead letters for good?", yes)
    done: Counter[str] = Counter()
    left = total
    # No more than there were: a letter that was put back may become one again at once.
    while done.total() < total:
        some = client.delete(DEAD) if drop else client.post(f"{DEAD}/retry")
        left = some.pop("left")
        if not sum(some.values()):
            break
        done.update(some)
    if as_json:
        print_json({what: done[what] for what in ("queued", "removed", "deleted")} | {"left": left})
        return
    said = [f"{done[what]} {word}" for what, word in _WORDS.items() if done[what]]
    click.echo(f"{', '.join(said) or 'nothing to do'}; {left} left")
    if left and not drop:
        click.echo("what is left cannot be read; `qlm requests --dead` says why, and --drop deletes it")


_WORDS = {"queued": "put back", "removed": "removed, since they run or have ended", "deleted": "deleted"}


def _id_at(client: AdminClient, position: int) -> str:
    data = client.get(DEAD, limit=position)
    if position > len(data["letters"]):
        raise AdminError(
            f"--dead-at is {position}; expected a line of `qlm requests --dead`, 1 to {data['total']}"
        )
    return str(data["letters"][position - 1]["id"])


def _sentence(each: dict[str, Any]) -> str:
    what = {
        "queued": f"request {each['request']} waits again",
        "removed": "removed",
        "deleted": "deleted",
    }[each["result"]]
    return f"{each['id']}: {what}" + (f" ({each['why']})" if each["why"] else "")


def _ask(question: str, yes: bool) -> None:
    if not yes:
        click.confirm(question, abort=True, err=True)
