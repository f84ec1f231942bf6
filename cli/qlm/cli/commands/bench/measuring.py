"""Measurement of a server by the options of `qlm bench run`."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
import numpy as np
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qlm.cli.bench.client import Target, Watch, ask_models, run_plan
from qlm.cli.bench.objectives import Slo
from qlm.cli.bench.record import Run
from qlm.cli.bench.schedule import Load, Planned, prompt_tokens, read_load_trace
from qlm.cli.bench.stopping import Stop, stopped_by_ctrl_c
from qlm.cli.server_url import server_url
from qlm.domain.errors import InvalidValueError
from qlm.gateway.http.connections.descriptors import allow_descriptors
from qlm.simulator.workload.trace_format import TraceFormat

Options = Mapping[str, Any]
"""Values of the command's options, by name."""

_ASK_TIMEOUT_S: Final = 10.0

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_FIXED: Final[Mapping[str, Any]] = {"n": 1, "stream": True}
"""Fields of a request that have one value only."""

_FILES: Final = 100
"""Files that a process opens besides its connections, and some more."""

_BURSTINESS_MIN: Final = 1e-4
"""Least shape of the gaps, as in scenarios (`cv` up to 100): with less they are 0 or without end."""


def load_of(options: Options) -> Load:
    """Return the load that options describe.

    Raises:
        InvalidValueError: One makes no sense, or the trace cannot be read.
    """
    rate, burstiness = options["request_rate"], options["burstiness"]
    if rate is not None and not rate > 0:
        raise InvalidValueError("--request-rate", rate, "a number above 0, or inf")
    if not burstiness >= _BURSTINESS_MIN:
        raise InvalidValueError("--burstiness", burstiness, f"a number from {_BURSTINESS_MIN} up, or inf")
    trace = options["trace"]
    return Load(
        request_rate=rate,
        burstiness=burstiness,
        num_prompts=options["num_prompts"],
        input_len=options["input_len"],
        output_len=options["output_len"],
        random_range_ratio=options["random_range_ratio"],
        trace=None if trace is None else read_load_trace(trace, TraceFormat(options["trace_format"])),
    )


async def measure(
    options: Options, slo: Slo | None, plans: Sequence[Sequence[Planned]], stop: Stop
) -> list[Run]:
    """Run each schedule, one after the other, until Ctrl-C.

    Args:
        options: Options of the command.
        slo: Objective of the requests.
        plans: The schedules.
        stop: What Ctrl-C asks for.

    Returns:
        The runs in which a request was sent.
    """
    if not options["endpoint"].startswith("/"):
        raise InvalidValueError("--endpoint", options["endpoint"], "a path such as /v1/completions")
    headers = _headers(options, slo)
    extra = _extra_body(options["extra_body"])
    if slo is not None and options["slo_as"] == "body":
        extra["slo"] = slo.body()
    url = server_url(options["url"])
    served = await ask_models(url, headers, options["model"], _ASK_TIMEOUT_S)
    target = Target(
        url=url,
        endpoint=options["endpoint"],
        model=served.model,
        counts=served.counts if options["counts"] is None else options["counts"],
        ignore_eos=options["ignore_eos"],
        headers=headers,
        extra_body=extra,
    )
    # Most systems allow 1024, and each request needs one; those beyond would count as the server's failures.
    allow_descriptors(max(map(len, plans)) + _FILES)
    # The schedule has a seed, the prompts have none: a prefix cache must not know them from an earlier run.
    rng = np.random.default_rng()
    runs = []
    for run, planned in enumerate(plans):
        if stop.asked:
            break
        title = f"run {run + 1} of {len(plans)}" if len(plans) > 1 else ""
        with _progress(len(planned), title, stop) as watch, stopped_by_ctrl_c(stop, _say):
            runs.append(
                await run_plan(
                    target,
                    planned,
                    prompt_tokens(planned, rng),
                    watch,
                    patience_s=options["patience_s"],
                    seed=options["seed"] + run,
                )
            )
    return [run for run in runs if run.requests]


def _say(what: str) -> None:
    click.echo(f"qlm: {what}", err=True)


@contextmanager
def _progress(requests: int, title: str, stop: Stop) -> Iterator[Watch]:
    """Show sent and ended requests on a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        sent = shown.add_task(f"{title} sent".strip(), total=requests)
        ended = shown.add_task(f"{title} ended".strip(), total=requests)
        yield Watch(
            clock_s=asyncio.get_running_loop().time,
            on_sent=lambda: shown.advance(sent),
            on_end=lambda: shown.advance(ended),
            stop=stop,
        )


def _headers(options: Options, slo: Slo | None) -> dict[str, str]:
    headers = {}
    if key := options["api_key"]:
        if not key.isprintable():
            raise InvalidValueError("--api-key", "a text with control characters", "a key in one line")
        headers["authorization"] = f"Bearer {key}"
    for text in options["headers"]:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and _HEADER_NAME.fullmatch(name) and value.isprintable()):
            raise InvalidValueError("--header", text, "KEY=VALUE, in one line")
        headers[name.lower()] = value  # the same header in other letters replaces the key
    if slo is not None and options["slo_as"] == "headers":
        headers |= slo.headers()
    return headers


def _extra_body(text: str | None) -> dict[str, Any]:
    try:
        body = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise InvalidValueError("--extra-body", text, "a JSON object")
    for name, measured in _FIXED.items():
        if body.get(name, measured) not in (measured, None):
            expected = f"{orjson.dumps(measured).decode()}: one streamed answer of each request is measured"
            raise InvalidValueError(f"--extra-body: {name}", body[name], expected)
    return body
