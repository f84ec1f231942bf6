"""`qlm bench`: measure a server under an open-loop load, and rate the results of any client."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from qlm.cli.bench.compare import differences, paired
from qlm.cli.bench.formats.reading import read_runs
from qlm.cli.bench.objectives import READERS, Slo, parse_goodput, parse_reader, parse_slo
from qlm.cli.bench.record import Run
from qlm.cli.bench.report import Judging, plain, report
from qlm.cli.bench.saved import saved_text, write_saved
from qlm.cli.bench.schedule import plan
from qlm.cli.bench.text import print_differences, print_report
from qlm.cli.commands.bench.measuring import load_of, measure
from qlm.cli.commands.bench.options import Measures, judges, measures
from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.inspect.console import console
from qlm.cli.scenario.output import make_folder
from qlm.domain.errors import InvalidValueError, QlmError


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
    with errors_in_one_line(code=1):
        if options["compare"] is not None:
            _compare(options)
        else:
            _measure(options)


@bench_command.command("score", cls=Measures)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--skip", type=click.IntRange(0), default=0, help="Leave out the first N arrivals of each run.")
@judges
def score_command(files: Sequence[Path], **options: Any) -> None:
    """Rate result FILEs of qlm bench, vllm bench serve, aiperf or inference-perf, each on its own.

    The files must have the times of tokens: vllm bench serve --save-result --save-detailed; aiperf's
    profile_export.jsonl; inference-perf's per_request_lifecycle_metrics.json.
    """
    with errors_in_one_line(code=1):
        judging = _judging(options, None)
        reports = [report(_skipped(read_runs(file), options["skip"]), judging) for file in files]
        if options["as_json"]:
            click.echo(
                _json([{"file": str(file), **each} for file, each in zip(files, reports, strict=True)])
            )
            return
        out = console()
        for file, each in zip(files, reports, strict=True):
            click.echo(f"{file}:")
            print_report(out, each)


def _measure(options: dict[str, Any]) -> None:
    if options["url"] is None:
        raise InvalidValueError("URL", None, "the address of a server, or --compare with two files")
    slo = parse_slo(options["slo"])
    judging = _judging(options, slo)
    plans = [plan(load_of(options), options["seed"] + run) for run in range(options["repeat"])]
    if options["skip"] >= len(plans[0]):
        raise InvalidValueError("--skip", options["skip"], f"less than the {len(plans[0])} requests")
    if options["save"] is not None:
        make_folder(options["save"].parent)
    runs = asyncio.run(measure(options, slo, plans))
    found = report(_skipped(runs, options["skip"]), judging)
    if options["save"] is not None:
        write_saved(options["save"], saved_text(runs, found, _settings(options)))
    if options["as_json"]:
        click.echo(_json(found))
    else:
        print_report(console(), found)
        if options["save"] is not None:
            click.echo(f"written to {options['save']}")
    if not found["answered"]:
        raise QlmError(f"no request was answered: {next(iter(found['errors']))}")


def _compare(options: dict[str, Any]) -> None:
    if options["url"] is not None:
        raise InvalidValueError("URL", options["url"], "none beside --compare")
    first, second = (_skipped(read_runs(file), options["skip"]) for file in options["compare"])
    judging = _judging(options, None)
    how = "paired by request" if paired(first, second) else "not paired: the schedules differ"
    found = [(each, differences(first, second, each, judging.half_life_s)) for each in judging.readers]
    if options["as_json"]:
        rows = [
            {"ttft_s": reader.ttft_s, "tokens_per_s": reader.tokens_per_s, "paired": how.startswith("paired")}
            | {name: each._asdict() for name, each in by_name.items()}
            for reader, by_name in found
        ]
        click.echo(_json(rows))
        return
    for reader, by_name in found:
        title = f"{reader.tokens_per_s:g} tok/s after {reader.ttft_s:g} s; {how}; * the interval excludes 0"
        print_differences(console(), title, ("A", "B"), by_name)


def _judging(options: dict[str, Any], slo: Slo | None) -> Judging:
    own = (slo.reader,) if slo is not None and slo.reader is not None else ()
    readers = tuple(map(parse_reader, options["readers"])) or (
        *own,
        *(each for each in READERS if each not in own),
    )
    return Judging(
        readers=readers,
        goodput_ms=parse_goodput(options["goodput"]),
        slo=slo,
        half_life_s=options["half_life_s"],
    )


def _skipped(runs: Sequence[Run], skip: int) -> list[Run]:
    for run in runs:
        if skip >= len(run.requests):
            raise InvalidValueError("--skip", skip, f"less than the {len(run.requests)} requests of a run")
    return [run.without(skip) for run in runs]


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    secret = ("api_key", "headers")
    return {name: _plain(value) for name, value in options.items() if name not in secret}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else plain(value)


def _json(data: Any) -> str:
    return orjson.dumps(plain(data), option=orjson.OPT_INDENT_2).decode()
