"""The report of a benchmark on a terminal."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from qlm.cli.bench.compare import Difference
from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import table

Form = Callable[[float], str]


def _seconds(value: float) -> str:
    return _number(value, 3)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _ratio(value: float) -> str:
    return _number(value, 3)


def _rate(value: float) -> str:
    return _number(value, 1)


ROWS: Final[Mapping[str, tuple[str, Form]]] = {
    "idle_p50_s": ("idle P50, s", _seconds),
    "idle_p99_s": ("idle P99, s", _seconds),
    "idle_max_s": ("idle max, s", _seconds),
    "first_wait_p50_s": ("first wait P50, s", _seconds),
    "first_wait_p99_s": ("first wait P99, s", _seconds),
    "stalls_per_answer": ("stalls per answer", _ratio),
    "qoe_mean": ("QoE mean", _ratio),
    "qoe_star_mean": ("QoE* mean", _ratio),
    "qoe_star_p10": ("QoE* P10", _ratio),
    "met_share": ("met, %", _percent),
    "smooth_goodput_tokens_per_s": ("smooth goodput, tok/s", _rate),
    "smooth_goodput_share": ("smooth goodput, %", _percent),
    "goodput_tokens_per_s": ("goodput, tok/s", _rate),
    "goodput_share": ("goodput, %", _percent),
}
"""Title and form of each figure of a reader."""

_LATENCIES: Final = ("ttft", "tpot", "ntpot", "itl", "e2el")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print a report."""
    _say(console, _counts(report))
    for error, count in report["errors"].items():
        _say(console, f"  {count} x {error}")
    _say(console, f"tokens counted by: {report['counting']}")
    console.print(_readers(report["readers"]), crop=False)
    if "slo_met_share" in report:
        objective = ", ".join(f"{name} {value:g}" for name, value in report["slo"].items())
        _say(console, f"objective ({objective}): met by {_percent(report['slo_met_share'])} % of all sent")
    console.print(_latencies(report["vllm"], report["scheduled"]), crop=False)
    for line in _throughput(report):
        _say(console, line)


def print_differences(
    console: Console, title: str, names: tuple[str, str], found: Mapping[str, Difference]
) -> None:
    """Print a comparison."""
    heads = ("", *(f"{name}>" for name in (*names, "difference", "95 % interval")), "sure")
    rows = (_difference(*ROWS[key], each) for key, each in found.items())
    console.print(table(title, heads, rows, spare=names), crop=False)


def _difference(label: str, form: Form, each: Difference) -> tuple[str, ...]:
    ends = f"{form(each.low)} to {form(each.high)}"
    figures = (form(each.first), form(each.second), form(each.difference), ends)
    return (label, *figures, "*" if each.sure else "")


def _counts(report: Mapping[str, Any]) -> str:
    runs = "" if report["runs"] == 1 else f" in {report['runs']} runs"
    return (
        f"{report['requests']} requests sent{runs}, {report['answered']} answered, "
        f"{report['failed']} failed; "
        f"{report['span_s']:.2f} s from the first scheduled arrival to the last event"
    )


def _readers(readers: Sequence[Mapping[str, Any]]) -> Table:
    heads = (f"{reader['tokens_per_s']:g}/s after {reader['ttft_s']:g} s>" for reader in readers)
    rows = (
        (label, *(_with_interval(reader, name, form) for reader in readers))
        for name, (label, form) in ROWS.items()
    )
    title = "Readers: all sent requests, a failed one waits without end [95 % interval]"
    return table(title, ("", *heads), rows)


def _with_interval(reader: Mapping[str, Any], name: str, form: Form) -> str:
    shown = form(reader[name])
    if name not in reader.get("intervals", {}):
        return shown
    low, high = map(form, reader["intervals"][name])
    return shown if low == high == shown else f"{shown} [{low}, {high}]"


def _latencies(vllm: Mapping[str, float | None], scheduled: Mapping[str, float]) -> Table:
    title = "Latency, ms: answered requests from sending, as vLLM has it; all sent from the schedule"
    heads = ("", "mean>", "median>", "P90>", "P99>", "sched. P50>", "sched. P90>", "sched. P99>")
    return table(title, heads, (_latency(name, vllm, scheduled) for name in _LATENCIES))


def _latency(name: str, vllm: Mapping[str, float | None], scheduled: Mapping[str, float]) -> tuple[str, ...]:
    keys = (f"mean_{name}_ms", f"median_{name}_ms", f"p90_{name}_ms", f"p99_{name}_ms")
    since = [scheduled.get(f"scheduled_p{percent}_{name}_ms") for percent in (50, 90, 99)]
    return (name.upper(), *(_ms(vllm[key]) for key in keys), *map(_ms, since))


def _throughput(report: Mapping[str, Any]) -> list[str]:
    vllm, scheduled = report["vllm"], report["scheduled"]
    lines = [
        f"request throughput {vllm['request_throughput']:.2f} req/s, output token throughput "
        f"{vllm['output_throughput']:.2f} tok/s, total {vllm['total_token_throughput']:.2f} tok/s"
    ]
    if "request_goodput" in vllm:
        limits = " ".join(f"{name}:{value:g}" for name, value in report["goodput_ms"].items())
        share = _percent(scheduled["scheduled_good_share"])
        lines.append(
            f"request goodput ({limits}) {vllm['request_goodput']:.2f} req/s; "
            f"{share} % of all sent, from the schedule"
        )
    lines.append(
        f"sent after the scheduled time: P99 {scheduled['send_delay_p99_ms']:.2f} ms, "
        f"max {scheduled['send_delay_max_ms']:.2f} ms"
    )
    return lines


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _ms(value: float | None) -> str:
    return "" if value is None else _number(value, 2)


def _number(value: float, digits: int) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never" if value > 0 else "-never"
    return f"{value:.{digits}f}"
