"""Commands that show the state of a running QLM: queues, groups, instances, requests, doctor."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group

from qlm.cli.commands.control import drop_command, request_path, retry_command
from qlm.cli.commands.options import errors_in_one_line, print_json, talks_to_gateway
from qlm.cli.inspect import render
from qlm.cli.inspect.admin_client import AdminClient, AdminError
from qlm.cli.inspect.console import console
from qlm.cli.inspect.lateness import attainment_table
from qlm.domain.errors import InvalidValueError

if TYPE_CHECKING:
    from qlm.cli.inspect.finding import Finding
    from qlm.cli.inspect.layout import Table


@click.command("queues")
@talks_to_gateway
@click.option("--watch", is_flag=True, help="Redraw every second; keys page, sort and filter, q quits.")
def queues_command(client: AdminClient, as_json: bool, watch: bool) -> None:
    """Show the class queues and the virtual queue of each instance."""

    def look() -> "list[Table]":
        data = client.get("/admin/v1/queues")
        return [*render.queues(data), attainment_table(data)]

    if as_json:
        print_json(client.get("/admin/v1/queues"))
    elif not watch:
        console().print(Group(*look()), crop=False)
    else:
        from qlm.cli.inspect import watching

        with suppress(KeyboardInterrupt):
            watching.watch(look)


@click.command("groups")
@talks_to_gateway
def groups_command(client: AdminClient, as_json: bool) -> None:
    """Show the request groups and the virtual queues they are in."""
    _show(client.get("/admin/v1/groups"), as_json, render.groups)


@click.command("instances")
@talks_to_gateway
def instances_command(client: AdminClient, as_json: bool) -> None:
    """Show the live instances: models, load, and the operations they performed."""
    _show(
        client.get("/admin/v1/instances"),
        as_json,
        lambda data: Group(render.instances(data), *render.operations(data)),
    )


@click.command("history")
@talks_to_gateway
def history_command(client: AdminClient, as_json: bool) -> None:
    """Show what the controllers have learned of each model, and how old it is."""
    from qlm.cli.inspect.history import history_tables
    from qlm.controller.core.history.codec import history_from_plain

    def draw(plain: Any) -> Group:
        try:
            history = history_from_plain(plain)
        except InvalidValueError as error:
            raise AdminError(
                f"the history of the gateway cannot be read: {error}; is it of another version?"
            ) from error
        return Group(*history_tables(history, time.time()))

    _show(client.get("/admin/v1/history"), as_json, draw)


class _WithDeadLetters(click.Command):
    """A command that takes an id or options, except for `retry` and `drop`, which are subcommands."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments, or those of a subcommand if it is called."""
        for each in (retry_command, drop_command):
            if args[:1] == [each.name]:
                return each.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    "requests",
    cls=_WithDeadLetters,
    epilog="`qlm requests retry ID` puts dead letters back, `qlm requests drop ID` deletes them.",
)
@talks_to_gateway
@click.argument("request_id", required=False)
@click.option(
    "--state", type=click.Choice(["queued", "running", "parked", "ended"]), help="Only in this state."
)
@click.option("--model", help="Only of this model.")
@click.option(
    "--late",
    is_flag=True,
    help="Only those that missed their objective, or are late already, of the newest 1000.",
)
@click.option("--task", help="Only calls of the task of this name, of the newest 1000.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Largest number shown."
)
@click.option(
    "--dead",
    is_flag=True,
    help="List dead letters instead: messages that could not be decoded.",
)
def requests_command(
    client: AdminClient,
    as_json: bool,
    request_id: str | None,
    state: str | None,
    model: str | None,
    late: bool,
    task: str | None,
    limit: int,
    dead: bool,
) -> None:
    """List requests, newest first; with REQUEST_ID show the event history of one."""
    if dead:
        if request_id or state or model or late or task:
            raise click.UsageError(
                "--dead lists all dead letters; expected no REQUEST_ID, --state, --model, --late or --task"
            )
        _show(client.get("/admin/v1/dead", limit=limit), as_json, render.dead_letters)
    elif request_id is not None:
        data = client.get(request_path(request_id))
        _show(data, as_json, lambda one: Group(*render.event_history(one)))
    else:
        flag = "true" if late else None
        query = {"state": state, "model": model, "late": flag, "task": task, "limit": limit}
        notes = ["(looked for among the newest 1000 requests)"] if late or task else []
        _show(client.get("/admin/v1/requests", **query), as_json, lambda data: render.requests(data, notes))


@click.command("doctor")
@talks_to_gateway
def doctor_command(client: AdminClient, as_json: bool) -> None:
    """Check a running QLM and this machine, and suggest repairs.

    With --config, the profile of each model and the bucket of files.s3 are checked, too. The exit code is 0
    if all is well, 1 if something is not, and 2 for wrong options or a wrong configuration.
    """
    from rich.text import Text

    from qlm.cli.inspect.doctor import examine
    from qlm.cli.inspect.layout import SENTENCE_MIN, wrapped

    config_file: Path | None = click.get_current_context().params["config_file"]
    findings = [] if config_file is None else [*_profiles(config_file), *_bucket(config_file)]
    findings += examine(client)
    if as_json:
        print_json([{"check": f.check, "ok": f.ok, "detail": f.detail, "remedy": f.remedy} for f in findings])
    else:
        out, indent = console(), " " * 6
        room = max(SENTENCE_MIN, out.width - len(indent))
        for finding in findings:
            mark = ("ok   ", "green") if finding.ok else ("bad  ", "red")
            first, *rest = wrapped(f"{finding.check}: {finding.detail}", room)
            # Details come from elsewhere: no markup of rich.
            out.print(Text.assemble(mark, first), soft_wrap=True)
            rest += wrapped(finding.remedy, room) if finding.remedy else []
            for line in rest:
                out.print(Text(f"{indent}{line}"), soft_wrap=True)
    if not all(finding.ok for finding in findings):
        raise SystemExit(1)


def _bucket(file: Path) -> "list[Finding]":
    """Try the bucket of a configuration, if it has one, with the credentials of this shell."""
    from qlm.cli.config.settings import load_config
    from qlm.cli.deployment.file_storage import try_bucket
    from qlm.cli.inspect.readiness_checks import file_storage
    from qlm.domain.errors import QlmError

    with errors_in_one_line():
        settings = load_config(file, {}).files.s3
    if settings is None:
        return []
    try:
        try_bucket(settings)
    except QlmError as error:
        return [file_storage(str(error))]
    return [file_storage(None)]


def _profiles(file: Path) -> "list[Finding]":
    """Check the profiles of a configuration; its packages are loaded for this alone."""
    from qlm.cli.config.settings import load_config
    from qlm.cli.inspect.doctor import examine_profiles, examine_ranges
    from qlm.cli.profiling.used_beyond import lines_of_config
    from qlm.cli.runtime.wiring import load_profiles

    with errors_in_one_line():
        config = load_config(file, {})
        findings = examine_profiles(config.models, config.instances, load_profiles(config.profiles))
        return findings + examine_ranges(lines_of_config(config))


def _show(data: Any, as_json: bool, draw: Any) -> None:
    if as_json:
        print_json(data)
    else:
        console().print(draw(data), crop=False)
