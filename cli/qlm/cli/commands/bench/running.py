"""Actions of `qlm bench`: measure, rate, compare."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from qlm.cli.bench.compare import differences, paired
from qlm.cli.bench.formats.reading import read_runs
from qlm.cli.bench.objectives import READERS, Slo, parse_goodput, parse_reader, parse_slo
from qlm.cli.bench.record import Run
from qlm.cli.bench.report import Judging, plain, report
from qlm.cli.bench.saved import saved_text
from qlm.cli.bench.schedule import plan
from qlm.cli.bench.stopping import Stop
from qlm.cli.bench.text import print_differences, print_report
from qlm.cli.commands.bench.measuring import load_of, measure
from qlm.cli.inspect.console import console
from qlm.cli.scenario.output import make_folder, write_whole
from qlm.cli.server_url import server_url
from qlm.domain.errors import InvalidValueError, QlmError
from qlm.domain.shown import without_password


def run(options: Mapping[str, Any]) -> None:
    """Measure a server, or compare two results, as the options of `qlm bench run` say.

    Raises:
        QlmError: An option is wrong, the server cannot be measured, or a file cannot be read.
    """
    if options["compare"] is not None:
        _compare(options)
    else:
        _measure(options)


def score(files: Sequence[Path], options: Mapping[str, Any]) -> None:
    """Rate result files, each on its own, as the options of `qlm bench score` say.

    Raises:
        QlmError: An option is wrong, or a file cannot be read.
    """
    judging = _judging(options, None)
    reports = [report(_skipped(read_runs(file), options["skip"]), judging) for file in files]
    if options["as_json"]:
        click.echo(_json([{"file": str(file), **each} for file, each in zip(files, reports, strict=True)]))
        return
    out = console()
    for file, each in zip(files, reports, strict=True):
        click.echo(f"{file}:")
        print_report(out, each)


def _measure(options: Mapping[str, Any]) -> None:
    if options["url"] is None:
        raise InvalidValueError("URL", None, "the address of a server, or --compare with two files")
    server_url(options["url"])  # before what takes long
    slo = parse_slo(options["slo"])
    judging = _judging(options, slo)
    plans = [plan(load_of(options), options["seed"] + run) for run in range(options["repeat"])]
    if options["skip"] >= len(plans[0]):
        raise InvalidValueError("--skip", options["skip"], f"less than the {len(plans[0])} requests")
    if options["save"] is not None:
        make_folder(options["save"].parent, (options["save"].name,))
    stop = Stop()
    runs = asyncio.run(measure(options, slo, plans, stop))
    found = _rated(runs, options, judging)
    sent, planned = sum(len(run.requests) for run in runs), sum(map(len, plans))
    if stop.gives_up or (stop.asked and sent < planned):
        raise QlmError(f"stopped after {sent} of {planned} requests, which are reported")
    if not found["answered"]:
        raise QlmError(f"no request was answered: {next(iter(found['errors']))}")


def _rated(runs: Sequence[Run], options: Mapping[str, Any], judging: Judging) -> dict[str, Any]:
    """Report on what was measured, and save it; return the report.

    Raises:
        QlmError: It was stopped before a request that counts.
        OSError: It cannot be saved; it was printed.
    """
    counted = [run for run in runs if len(run.requests) > options["skip"]]
    if not counted:
        raise QlmError(f"stopped before there is anything to report, with --skip {options['skip']}")
    found = report(_skipped(counted, options["skip"]), judging)
    try:
        if options["save"] is not None:
            write_whole(options["save"], saved_text(counted, found, _settings(options)))
    finally:  # a disk that is full by now costs the file only, not what was measured
        _show(found, as_json=options["as_json"])
    if options["save"] is not None and not options["as_json"]:
        click.echo(f"written to {options['save']}")
    return found


def _show(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(_json(found))
    else:
        print_report(console(), found)


def _compare(options: Mapping[str, Any]) -> None:
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


def _judging(options: Mapping[str, Any], slo: Slo | None) -> Judging:
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


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    secret = ("api_key", "headers")
    plain = {name: _plain(value) for name, value in options.items() if name not in secret}
    return plain | {"url": without_password(str(options["url"]))}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else plain(value)


def _json(data: Any) -> str:
    return orjson.dumps(plain(data), option=orjson.OPT_INDENT_2).decode()
