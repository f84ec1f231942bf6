"""Pictures of a simulation: attainment over time, queue lengths, virtual queues, accelerator utilisation."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from qlm.agents.core.stats.gpu_time import GpuUse, Interval
from qlm.simulator.cluster.event_queue import EPOCH_NS
from qlm.simulator.report import by_class
from qlm.simulator.results import NEVER, Sample, SimulationResult

_BINS = 60
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Paul Tol's bright scheme, which colour-blind readers can distinguish."""

_LOOKS: Final[Mapping[GpuUse, Mapping[str, Any]]] = {
    GpuUse.USEFUL: {"facecolor": "#ddddaa"},
    GpuUse.AGAIN: {"facecolor": "#ddddaa", "edgecolor": "#aa3377", "hatch": "////", "linewidth": 0},
    GpuUse.SWAP: {"facecolor": "#777777"},
    GpuUse.IDLE_AWAKE: {"facecolor": "#cc3311"},
    GpuUse.IDLE_LOADABLE: {"facecolor": "#ee7733"},
    GpuUse.IDLE: {"facecolor": "white", "edgecolor": "#cccccc", "linewidth": 0.5},
    GpuUse.DOWN: {"facecolor": "black"},
}
"""Look of each use of an instance's time."""


def draw_all(result: SimulationResult, samples: Sequence[Sample], folder: Path) -> None:
    """Write attainment.png, queues.png, gantt.png and use.png."""
    draw_attainment(result, folder / "attainment.png")
    draw_queues(result, samples, folder / "queues.png")
    draw_gantt(result, samples, folder / "gantt.png")
    draw_use(result, samples, folder / "use.png")


def colour(number: int) -> str:
    """Return the colour of the n-th series."""
    return _COLOURS[number % len(_COLOURS)]


def figure(title: str, *, width: float = 9.0, height: float = 4.0) -> tuple[Figure, Axes]:
    """Create an empty picture; its size is in inches."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.add_subplot()
    axes.set_title(title)
    return made, axes


def draw_attainment(result: SimulationResult, path: Path) -> None:
    """Draw the share of requests that met their objective, by time of arrival."""
    made, axes = figure(f"Objectives met, by arrival: {_what(result)}")
    arrival_s = result.outcomes.arrival_ns / 1e9
    edges = np.linspace(0.0, max(float(arrival_s.max(initial=0.0)), 1e-9), _BINS + 1)
    for number, (name, rows) in enumerate(by_class(result)):
        all_of, _ = np.histogram(arrival_s[rows], edges)
        met, _ = np.histogram(arrival_s[rows & result.outcomes.met], edges)
        some = all_of > 0
        middles = (edges[:-1] + edges[1:])[some] / 2
        axes.plot(middles, 100 * met[some] / all_of[some], label=name, color=colour(number), marker=".")
    axes.set(xlabel="arrival, s", ylabel="met, %", ylim=(-3, 103))
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    made.savefig(path)


def draw_queues(result: SimulationResult, samples: Sequence[Sample], path: Path) -> None:
    """Draw the number of waiting requests over time, by model."""
    made, axes = figure(f"Waiting requests: {_what(result)}")
    at_s = [sample.at_s for sample in samples]
    for number, model in enumerate(result.scenario.models):
        axes.plot(at_s, [sample.waiting[number] for sample in samples], label=model.id, color=colour(number))
    axes.set(xlabel="time, s", ylabel="requests")
    axes.legend()
    made.savefig(path)


def draw_gantt(result: SimulationResult, samples: Sequence[Sample], path: Path) -> None:
    """Draw the model of each instance over time, and below it what its time went into.

    Edges are model swaps or new groups at the queue's head.
    """
    instances = len(result.instances)
    made, axes = figure(f"Virtual queues: {_what(result)}", height=max(3.0, 0.6 * instances + 2.0))
    for instance in range(instances):
        for begin_s, lasts_s, model in _bars(samples, instance):
            axes.barh(
                instance,
                lasts_s,
                left=begin_s,
                height=0.45,
                color=colour(model),
                edgecolor="white",
                linewidth=0.2,
            )
        _draw_uses(axes, instance, result.intervals[instance])
    for number, spec in enumerate(result.scenario.models):
        axes.barh(0, 0, color=colour(number), label=spec.id)
    for use, look in _LOOKS.items():
        axes.barh(0, 0, label=use.replace("_", " "), **look)
    axes.set_yticks(range(instances), result.instances)
    axes.set(xlabel="time, s")
    made.legend(loc="outside lower center", ncols=6)
    made.savefig(path)


def _draw_uses(axes: Axes, instance: int, intervals: Sequence[Interval]) -> None:
    """Draw what the time of an instance went into, below the bar of its models."""
    for use, look in _LOOKS.items():
        spans = [
            ((each.began_ns - EPOCH_NS) / 1e9, each.lasts_ns / 1e9) for each in intervals if each.use is use
        ]
        axes.broken_barh(spans, (instance - 0.45, 0.18), **look)


def _bars(samples: Sequence[Sample], instance: int) -> list[tuple[float, float, int]]:
    """Return (begin, duration, model) of each stretch with the same model and first group."""
    bars: list[tuple[float, float, int]] = []
    state: tuple[int, str] | None = None
    for sample, following in itertools.pairwise(samples):
        now = (sample.awake[instance], sample.first_group[instance])
        if now[0] == NEVER:
            state = None
        elif now == state:
            begin_s, _, model = bars[-1]
            bars[-1] = (begin_s, following.at_s - begin_s, model)
        else:
            bars.append((sample.at_s, following.at_s - sample.at_s, now[0]))
            state = now
    return bars


def draw_use(result: SimulationResult, samples: Sequence[Sample], path: Path) -> None:
    """Draw the share of busy instances and the mean KV cache usage over time."""
    made, axes = figure(f"Use of the accelerators: {_what(result)}")
    at_s = [sample.at_s for sample in samples]
    busy = [100 * float(np.mean(np.array(sample.running) > 0)) for sample in samples]
    kv = [100 * float(np.mean(sample.kv_usage)) for sample in samples]
    axes.plot(at_s, busy, label="instances that compute", color=colour(0))
    axes.plot(at_s, kv, label="KV cache in use, mean", color=colour(1))
    axes.set(xlabel="time, s", ylabel="%", ylim=(-3, 103))
    axes.legend()
    made.savefig(path)


def _what(result: SimulationResult) -> str:
    return f"{result.scenario.name}, {result.policy}, seed {result.seed}"
