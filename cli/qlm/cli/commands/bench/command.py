"""`qlm bench`: measure a server under an open-loop load, and rate the results of any client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from qlm.cli.commands.bench.options import Measures, check_compare, judges, measures
from qlm.cli.commands.options import errors_in_one_line


class _Bench(click.Group):
    """Group whose command `run` needs no name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the command before arguments without one."""
        return super().parse_args(ctx, self._named(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command."""
        return super().resolve_command(ctx, self._named(args))

    def _named(self, args: list[str]) -> list[str]:
        plain = not args or args[0] in self.commands or args[0] in ("-h", "--help")
        return args if plain else ["run", *args]


@click.group("bench", cls=_Bench)
def bench_command() -> None:
    """Measure a server under load as its readers live through it, or rate saved results.

    `qlm bench URL ...` is short for `qlm bench run URL ...`. docs/benchmarking.md explains the figures.
    """


@bench_command.command("run", cls=Measures)
@measures
@judges
def run_command(**options: Any) -> None:
    """Send requests to the server at URL at their scheduled times, and report on all of them.

    The load is open loop: a slow server does not delay the next request. Any OpenAI-compatible server
    will do.
    """
    # Imported here: client and statistics take longer than the help.
    from qlm.cli.commands.bench.running import run

    with errors_in_one_line(code=1):
        if options["compare"] is not None:
            check_compare(click.get_current_context())
        run(options)


@bench_command.command("score", cls=Measures)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--skip", type=click.IntRange(0), default=0, help="Leave out the first N arrivals of each run.")
@judges
def score_command(files: Sequence[Path], **options: Any) -> None:
    """Rate result FILEs of qlm bench, vllm bench serve, aiperf or inference-perf, each on its own.

    The files must have the times of tokens: vllm bench serve --save-result --save-detailed; aiperf's
    profile_export.jsonl; inference-perf's per_request_lifecycle_metrics.json.
    """
    from qlm.cli.commands.bench.running import score

    with errors_in_one_line(code=1):
        score(files, options)
