"""Simulation of a scenario file, its report and its files."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click
import orjson

from qlm.cli.commands.simulation_options import bar, check_folder, drawing
from qlm.cli.inspect.console import console
from qlm.cli.inspect.render import table
from qlm.cli.plans.tables import count
from qlm.cli.profiling.used_beyond import lines_of_profiles
from qlm.cli.scenario.output import make_folder, write_files
from qlm.cli.scenario.workload import draw_scenario, stream_lines
from qlm.simulator.gpu_report import gpu_time_text, idle_csv
from qlm.simulator.policies import Policy
from qlm.simulator.report import requests_csv, summary
from qlm.simulator.sampling import ClusterSampler
from qlm.simulator.simulation import simulate

_FILES: Final = ("requests.csv", "idle.csv", "summary.json")
_PICTURES: Final = ("attainment.png", "queues.png", "gantt.png", "use.png")


def simulate_file(
    path: Path, policy: Policy, seed: int, out: Path | None, load: float, plots: bool, as_json: bool
) -> None:
    """Simulate a scenario, print what came of it, and write the files that were asked for.

    Args:
        path: The scenario.
        policy: Policy with its rules.
        seed: Seed of all randomness.
        out: Folder for the files; None for none.
        load: Factor on all arrival rates.
        plots: Draw pictures into the folder.
        as_json: Print the summary as JSON, not as a table.

    Raises:
        click.UsageError: There are to be pictures, but there is no folder.
        QlmError: The scenario cannot be simulated.
    """
    check_folder(plots=plots, out=out)
    draw = drawing("simulation") if plots else None
    drawn = draw_scenario(path, seed, load=load)
    if out is not None:
        make_folder(out, (*_FILES, *(_PICTURES if plots else ())))
    for line in lines_of_profiles(drawn.scenario.fleet.profiles.values()):
        click.echo(line, err=True)
    sampler = ClusterSampler(sample_interval_s(drawn.scenario.horizon_s)) if draw else None
    with bar("simulating") as report_progress:
        result = simulate(
            drawn.scenario,
            policy,
            seed,
            stopwatch_s=time.perf_counter,
            on_progress=report_progress,
            observer=sampler,
        )
    summed = summary(result, drawn.streams)
    plain = orjson.dumps(summed, option=orjson.OPT_INDENT_2)
    if out is not None:
        table = requests_csv(result).encode()
        idle = idle_csv(result).encode()
        write_files(out, dict(zip(_FILES, (table, idle, plain + b"\n"), strict=True)))
    if draw is not None and sampler is not None and out is not None:
        draw(result, sampler.samples, out)
    if as_json:
        click.echo(plain.decode())
    else:
        for line in stream_lines(drawn.streams):
            click.echo(line)
        _print(summed, out)


def sample_interval_s(horizon_s: float | None) -> float:
    """Return the seconds between samples for pictures: a thousand samples, at most one per second."""
    return 1.0 if horizon_s is None else max(1.0, horizon_s / 1000)


def _print(summed: dict[str, object], out: Path | None) -> None:
    shares, latencies = summed["attainment_by_class"], summed["latency_by_class"]
    assert isinstance(shares, dict) and isinstance(latencies, dict)
    rows = [
        (
            name,
            f"{100 * share:.1f} %",
            *(_percentiles(latencies[name], of) for of in ("first_token", "completion")),
        )
        for name, share in shares.items()
    ]
    title = f"{summed['scenario']}, {summed['policy']}, seed {summed['seed']}"
    heads = ("objective", "met>", "first token p50 / p99, s>", "answer p50 / p99, s>")
    console().print(table(title, heads, rows), crop=False)
    say = partial(console().print, highlight=False, markup=False)
    say(
        f"{_count(summed, 'submitted', 'request')}, {_percent(summed['attainment'])} met in all; "
        f"{summed['refused']} refused, {summed['unfinished']} unfinished; "
        + (f"{summed['not_arrived']} not arrived before the horizon; " if summed["not_arrived"] else "")
        + f"{_count(summed, 'swaps', 'model swap')}, {_count(summed, 'evictions', 'eviction')}"
    )
    say(gpu_time_text(summed))
    say(_prefixes(summed))
    say(
        f"{_number(summed['simulated_s'])} s simulated in {_number(summed['wall_s'])} s"
        + (f"; written to {out}" if out else "")
    )


def _count(summed: Mapping[str, object], name: str, what: str) -> str:
    number = summed[name]
    assert isinstance(number, int)
    return count(number, what)


def _percentiles(late: Mapping[str, object], of: str) -> str:
    return f"{_number(late[f'{of}_p50_s'])} / {_number(late[f'{of}_p99_s'])}"


def _prefixes(summed: dict[str, object]) -> str:
    if not summed["prefix_tokens_shared"]:
        return "no request shares a prefix"
    shared, hit = summed["prefix_tokens_shared"], summed["prefix_tokens_hit"]
    return f"shared prefixes: {shared} prompt tokens; {hit} found in the engines' caches"


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "-"


def _percent(value: object) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, float) else "-"
