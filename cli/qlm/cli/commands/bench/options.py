"""Options of `qlm bench`: the load, and how requests are judged."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from qlm.cli.bench.patience import PATIENCE_S
from qlm.cli.commands.options import SEED
from qlm.domain.errors import InvalidValueError
from qlm.domain.streaming.goodput import HALF_LIFE_S
from qlm.simulator.workload.trace_format import TraceFormat

_LIMIT: Final = re.compile(r"(?:ttft|tpot|e2el|pace|deadline):[\d.]+")


class _Number(click.FloatRange):
    """Numbers of a range, infinity among them; not NaN, which is outside of no range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a number.", param, ctx) if math.isnan(number) else number


class Measures(click.Command):
    """A command whose `--goodput` and `--slo` take several words, as those of vLLM do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its words."""
        repeated: list[str] = []
        option = ""
        for word in args:
            if word.startswith("-"):
                name = word.partition("=")[0]
                option = name if name in ("--goodput", "--slo") else ""
            elif option and repeated[-1] != option and _LIMIT.fullmatch(word):
                repeated.append(option)
            repeated.append(word)
        return super().parse_args(ctx, repeated)


def judges(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options by which requests are judged."""
    return _with(
        command,
        click.option(
            "--reader",
            "readers",
            multiple=True,
            metavar="PACE[:TTFT_MS]",
            help="Reader of each answer: tokens per second, and the first token in ms (1000).  "
            "[default: 4.8, 10 and 20]",
        ),
        click.option(
            "--goodput",
            multiple=True,
            metavar="NAME:MS",
            help="Limits of vLLM's goodput: ttft, tpot, e2el. Several words, as in vLLM.",
        ),
        click.option(
            "--half-life",
            "half_life_s",
            type=_Number(min=0, min_open=True),
            default=HALF_LIFE_S,
            show_default=True,
            help="Idle seconds after which half of the users have left, for smooth goodput.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    )


def measures(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument URL and the options of a measurement."""
    return _of_server(_of_load(_of_run(command)))


def _of_server(command: Callable[..., None]) -> Callable[..., None]:
    return _with(
        command,
        click.argument("url", required=False),
        click.option("--model", help="Model name.  [default: the first that the server lists]"),
        click.option("--endpoint", default="/v1/completions", show_default=True, help="Path of the API."),
        click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="Header."),
        click.option("--api-key", envvar="OPENAI_API_KEY", help="Key of the server (or OPENAI_API_KEY)."),
        click.option("--extra-body", metavar="JSON", help="Further fields of each request."),
    )


def _of_load(command: Callable[..., None]) -> Callable[..., None]:
    return _with(
        command,
        click.option(
            "--request-rate", type=float, help="Requests per second, or inf.  [default: the trace's times]"
        ),
        click.option(
            "--burstiness", type=float, default=1.0, show_default=True, help="1: Poisson; less: burstier."
        ),
        click.option(
            "--num-prompts", type=click.IntRange(1), default=1000, show_default=True, help="Requests."
        ),
        click.option(
            "--input-len", type=click.IntRange(1), default=1024, show_default=True, help="Prompt tokens."
        ),
        click.option(
            "--output-len", type=click.IntRange(1), default=128, show_default=True, help="Output tokens."
        ),
        click.option(
            "--random-range-ratio",
            type=_Number(0, 1, max_open=True),
            default=0.0,
            show_default=True,
            help="Lengths vary evenly by this share.",
        ),
        click.option("--trace", type=click.Path(path_type=Path), help="Trace with lengths and times."),
        click.option(
            "--trace-format",
            type=click.Choice([each.value for each in TraceFormat if each is not TraceFormat.SHAREGPT]),
            default=TraceFormat.CSV.value,
            show_default=True,
            help="Its format, as in scenarios.",
        ),
        click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of arrivals and lengths."),
        click.option(
            "--repeat", type=click.IntRange(1), default=1, show_default=True, help="Runs; each its own seed."
        ),
    )


def _of_run(command: Callable[..., None]) -> Callable[..., None]:
    return _with(
        command,
        click.option(
            "--skip", type=click.IntRange(0), default=0, help="Leave out the first N arrivals as warm-up."
        ),
        click.option(
            "--patience",
            "patience_s",
            type=_Number(min=0, min_open=True),
            default=PATIENCE_S,
            show_default=True,
            help="Seconds after which a request is given up.",
        ),
        click.option(
            "--ignore-eos/--no-ignore-eos", default=True, help="Ask for answers of the full length."
        ),
        click.option(
            "--continuous-usage/--no-continuous-usage",
            "counts",
            default=None,
            help="Ask for the token count in each event.  [default: if the server is QLM or vLLM]",
        ),
        click.option(
            "--slo",
            multiple=True,
            metavar="NAME:NUMBER",
            help="Objective: ttft (ms), pace (tokens/s), deadline (ms). Several words, as in vLLM.",
        ),
        click.option(
            "--slo-as",
            type=click.Choice(["body", "headers", "unsent"]),
            default="body",
            show_default=True,
            help="How QLM receives the objective; unsent: only judge by it.",
        ),
        click.option(
            "--save", type=click.Path(dir_okay=False, path_type=Path), help="File for every token time."
        ),
        click.option(
            "--compare",
            nargs=2,
            type=click.Path(path_type=Path),
            metavar="A B",
            help="Compare two result files instead of measuring.",
        ),
    )


_OF_COMPARE: Final = frozenset({"compare", "readers", "half_life_s", "skip", "as_json"})
"""Parameters that a comparison of two results has."""


def check_compare(context: click.Context) -> None:
    """Refuse what a comparison would ignore, such as an objective.

    Raises:
        InvalidValueError: It was given beside `--compare`.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _OF_COMPARE:
            shown = parameter.opts[0] if isinstance(parameter, click.Option) else name.upper()
            expected = "none beside --compare, which takes --reader, --half-life, --skip and --json"
            raise InvalidValueError(shown, context.params[name], expected)


def _with(command: Callable[..., None], *parameters: Callable[..., Any]) -> Callable[..., None]:
    for parameter in reversed(parameters):
        command = parameter(command)
    return command
