"""Measuring an engine, or fitting its log, for `qlm profile`."""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qlm.agents.engines.vllm.client import VllmEngine
from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.profiling.admission import Window, measure_windows, with_admission
from qlm.cli.profiling.facts import Facts, Identity, build_profile, facts_of, given_facts, physics_of
from qlm.cli.profiling.fit_text import fit_lines
from qlm.cli.profiling.from_log import profile_from_log
from qlm.cli.profiling.grid import Grid, choose_grid
from qlm.cli.profiling.identify import describe
from qlm.cli.profiling.measure import Measured, Prober, measure, measure_swap
from qlm.cli.profiling.named import read_profile
from qlm.cli.profiling.saving import kept_points, reserve, save
from qlm.cli.profiling.settings import FACTS, SETTINGS, Settings, choose_settings
from qlm.cli.server_url import server_url
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.rct_estimator.profiles.beyond import beyond_fit
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.file import parse_profile_text, profile_text
from qlm.rct_estimator.profiles.fit import Fitted, fit_iteration
from qlm.rct_estimator.profiles.profile import Profile, Source, SourceKind
from qlm.rct_estimator.profiles.token_budget import defaults_on


def run(options: dict[str, Any]) -> None:
    """Measure the engine of the options, or fit the log that they name, and write the profile."""
    with errors_in_one_line(code=1):
        if options["log_file"] is not None:
            _from_log(options)
            return
        for name, flag in (("url", "URL"), ("accelerator", "--accelerator")):
            if options[name] is None:
                raise InvalidValueError(flag, None, "a value, or --from-log with a log")
        at = {"url": server_url(options["url"])}
        asyncio.run(profile_engine(options | at, Console(stderr=True)))


def _from_log(options: dict[str, Any]) -> None:
    if options["start"] is None or options["out"] is None:
        missing = "--start" if options["start"] is None else "--out"
        raise InvalidValueError(missing, None, "a value, as --from-log needs it")
    if options["url"] is not None:
        raise InvalidValueError("URL", options["url"], "none beside --from-log")
    reserve(options["out"], force=options["force"])
    profile_from_log(options["log_file"], options["start"], options["out"])


async def _nothing() -> None:
    return


async def profile_engine(
    options: dict[str, Any], console: Console, on_pass: Callable[[], Awaitable[None]] = _nothing
) -> None:
    """Measure an engine and write its profile.

    Args:
        options: Values of the command's options, by name.
        console: Shows the progress.
        on_pass: Called after each time that all points have been measured.
    """
    engine_says = await describe(options["url"], options["model"], options["api_key"])
    defaults = defaults_on(options["accelerator"], gpus=options["gpus"])
    settings, assumed = choose_settings(engine_says, {name: options[name] for name in SETTINGS}, defaults)
    name = options["name"] or engine_says.served
    out = options["out"] or Path(_file_name(name, options["accelerator"], options["gpus"]))
    reserve(out, force=options["force"])
    date = datetime.now(UTC).date().isoformat()
    engine_name = f"vLLM {engine_says.version}"
    where = f"{engine_name}, {options['gpus']} x {options['accelerator']}"
    identity = Identity(
        model=name,
        accelerator=options["accelerator"],
        gpus=options["gpus"],
        engine=engine_name,
        measured=f"Measured by qlm profile on {date} at {where}.",
    )
    facts = _facts(options, identity, date)
    for line in assumed:
        click.echo(line, err=True)
    url, served, key = options["url"], engine_says.served, options["api_key"]
    engine = VllmEngine(url, served, seqs_max=settings.seqs_max, api_key=key)
    try:
        capacity = await engine.capacity()
        grid = choose_grid(capacity, quick=options["quick"], batched_tokens_max=settings.batched_tokens_max)
        grid = replace(grid, repeats=options["repeats"] or grid.repeats)
        if options["swap"]:  # first: an engine that cannot sleep is found before minutes of measurement
            source = Source(SourceKind.MEASURED, identity.measured)
            times = await measure_swap(engine, time.monotonic_ns)
            facts = {**facts, **{key: (round(s, 3), source) for key, s in times.items()}}
        measured, windows = await _measure(engine, capacity, grid, settings, console, on_pass)
    finally:
        await engine.close()
    with kept_points(out, measured.points):
        admission = with_admission(fit_iteration(measured.points, physics_of(identity, facts)), windows)
        profile = build_profile(identity, capacity, settings, admission.fitted, facts, measured.lone_ms)
        text = profile_text(profile)
        parse_profile_text(text, str(out))
    _print_fit(profile, admission.fitted, measured)
    if admission.line is not None:
        click.echo(admission.line)
    save(out, text)
    click.echo(f"written to {out}")


async def _measure(
    engine: VllmEngine,
    capacity: EngineCapacity,
    grid: Grid,
    settings: Settings,
    console: Console,
    on_pass: Callable[[], Awaitable[None]],
) -> tuple[Measured, list[Window]]:
    prober = Prober(
        engine,
        batched_tokens_max=grid.batched_tokens_max,
        context_tokens=capacity.context_tokens,
        async_scheduling=settings.async_scheduling,
        clock_ns=time.monotonic_ns,
        rng=random.Random(),
    )
    columns = TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("warming up", total=grid.measurements)
        begun = 0
        windows: list[Window] = []

        def on_point(description: str) -> None:
            nonlocal begun
            progress.update(task, description=description, completed=begun)
            begun += 1

        async def end_pass() -> None:
            windows.extend(await measure_windows(prober, capacity))
            await on_pass()

        measured = await measure(prober, grid, on_point, end_pass)
        progress.update(task, description="done", completed=grid.measurements)
    return measured, windows


def _facts(options: dict[str, Any], identity: Identity, date: str) -> Facts:
    """Collect what cannot be measured: from flags, else a profile, else a prompt at the terminal."""
    facts = dict(_profile_facts(options["facts_file"], identity))
    facts.update(given_facts({name: options[name] for name in FACTS}, date))
    measured = {"swap_warm_s", "swap_reload_s", "unload_s"} if options["swap"] else set()
    missing = [name for name in FACTS if name not in facts and name not in measured]
    if missing and not sys.stdin.isatty():
        flags = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise InvalidValueError("facts", "unknown", f"{flags}, or --facts with a profile that has them")
    asked = {name: click.prompt(f"{name}: {FACTS[name]}", type=float) for name in missing}
    return {**facts, **given_facts(asked, date)}


def _profile_facts(file: Path | None, identity: Identity) -> Facts:
    if file is not None:
        return facts_of(read_profile(file))
    try:
        return facts_of(find_profile(builtin_profiles(), identity.model, identity.accelerator, identity.gpus))
    except InvalidValueError:
        return {}


def _print_fit(profile: Profile, fitted: Fitted, measured: Measured) -> None:
    click.echo(f"{profile.model} on {profile.gpus} x {profile.accelerator}, {profile.kv_tokens} KV tokens")
    for line in fit_lines(fitted):
        click.echo(line)
    click.echo(f"request    {profile.request_ms:.3g} ms outside of iterations")
    for line in (*(f"skipped: {each}" for each in measured.skipped), *beyond_fit(profile)):
        click.echo(line)


def _file_name(model: str, accelerator: str, gpus: int) -> str:
    many = f"-x{gpus}" if gpus > 1 else ""
    return f"{model.replace('/', '-')}-{accelerator.lower()}{many}.yaml"
