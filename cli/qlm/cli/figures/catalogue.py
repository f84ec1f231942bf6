"""The figures that can be simulated, by name. docs/streaming-figures.md says which cannot, and why."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from qlm.cli.figures.figure import Arm, Claim, Figure, Rows, mean
from qlm.simulator.engine.host_cache import KvOffloading

GOOD_QOE: Final = 0.9
"""Quality of experience that Andes calls good."""


def highest_load(rows: Rows, arm: str, column: str) -> float | None:
    """Return the load at which a falling quality reaches `GOOD_QOE`: between two loads by a line.

    None if it does so below or above all loads.
    """
    loads = sorted({each.point for each in rows})
    points = [(load, mean(rows, arm, column, load)) for load in loads]
    for (low, good), (high, bad) in pairwise(points):
        if good >= GOOD_QOE > bad:
            return low + (high - low) * (good - GOOD_QOE) / (good - bad)
    return None


def _rate_gain(arm: str, column: str) -> Callable[[Rows], str]:
    def ours(rows: Rows) -> str:
        high, base = highest_load(rows, arm, column), highest_load(rows, "fcfs", column)
        return "beyond these loads" if high is None or base is None else f"{high / base:.2f}x"

    return ours


def _most_gain(arm: str, column: str) -> Callable[[Rows], str]:
    def ours(rows: Rows) -> str:
        gains = {
            load: mean(rows, arm, column, load) / mean(rows, "fcfs", column, load)
            for load in {each.point for each in rows}
        }
        load = max(gains, key=lambda each: (gains[each], each))
        return f"{gains[load]:.2f}x at {load:g}"

    return ours


def _change(arm: str, column: str, base: str = "fcfs") -> Callable[[Rows], str]:
    return lambda rows: f"{mean(rows, arm, column) / mean(rows, base, column) - 1:+.1%}"


def _at(arm: str, column: str, load: float) -> Callable[[Rows], str]:
    return lambda rows: f"{mean(rows, arm, column, load):.2f}"


def _best_draw(
    arm: str, column: str, best: Callable[[Iterable[float]], float] = max
) -> Callable[[Rows], str]:
    """Return the best change against fcfs in a single draw, and its number of requests."""

    def ours(rows: Rows) -> str:
        bases = {
            (each.point, each.seed): float(getattr(each.measures, column))
            for each in rows
            if each.arm == "fcfs"
        }
        changes = {
            (float(getattr(each.measures, column)) / base - 1, each.point)
            for each in rows
            if each.arm == arm and (base := bases[each.point, each.seed])
        }
        if not changes:
            return "none"
        most = best(change for change, _ in changes)
        return f"{most:+.1%} at {min(point for change, point in changes if change == most):g}"

    return ours


def _arms(names: Sequence[str]) -> tuple[Arm, ...]:
    return tuple(Arm(name, name) for name in names)


def _burst(
    scenario: str, where: str, *, requests: int = 80, output_tokens: int = 2048, kv_tokens: int | None = None
) -> Figure:
    return Figure(
        title=f"{requests} requests at once, 1024 tokens in, {output_tokens} out, 10 tokens/s: {where}",
        source="TokenFlow, section 7.2: bursts, and the ablation of 7.5",
        scenario=scenario,
        kv_tokens=kv_tokens,
        arms=(
            *_arms(("fcfs", "tokenflow")),
            Arm("tokenflow, no offload", "tokenflow", host_kv_gib=0.0),
            Arm("tokenflow, written late", "tokenflow", offloading=KvOffloading(writes_through=False)),
            Arm("tokenflow, one way at a time", "tokenflow", offloading=KvOffloading(overlaps=False)),
            *_arms(("andes", "unified")),
        ),
        shown={
            "ttft_p50_s": "TTFT P50, s", "ttft_p99_s": "TTFT P99, s",
            "effective_tokens_per_s": "effective tok/s", "tokens_per_s": "tok/s", "qoe_star": "QoE*",
            "idle_p99_s": "idle P99, s", "preemptions": "preemptions", "makespan_s": "makespan, s",
        },
        drawn="ttft_p99_s",
        claims=(
            Claim("P99 of TTFT, tokenflow against fcfs", "up to -80.2%", _change("tokenflow", "ttft_p99_s")),
            Claim(
                "effective throughput, tokenflow against fcfs", "up to +52.9%",
                _change("tokenflow", "effective_tokens_per_s"),
            ),
            Claim("throughput, tokenflow against fcfs", "about equal", _change("tokenflow", "tokens_per_s")),
            Claim(
                "makespan without offloading, against with it", "+92.8%",
                _change("tokenflow, no offload", "makespan_s", "tokenflow"),
            ),
            Claim(
                "makespan without write-through, against with it", "+25.4%",
                _change("tokenflow, written late", "makespan_s", "tokenflow"),
            ),
            Claim(
                "makespan without overlap of loads and evictions, against with it", "+12.8%",
                _change("tokenflow, one way at a time", "makespan_s", "tokenflow"),
            ),
        ),
    )  # fmt: skip


def _by_load(
    *, title: str, source: str, requests: int, loads: tuple[float, ...], claims: tuple[Claim, ...]
) -> Figure:
    return Figure(
        title=title,
        source=source,
        scenario="andes-opt-66b.yaml",
        loads=loads,
        requests=requests,
        arms=_arms(("fcfs", "round-robin", "andes", "tokenflow", "unified")),
        shown={
            "qoe": "QoE", "qoe_star": "QoE*", "smooth_goodput": "smooth goodput, tok/s", "met": "met",
            "ttft_p50_s": "TTFT P50, s", "preemptions": "preemptions", "tokens_per_s": "tok/s",
            "longest_wait_s": "longest wait, s", "makespan_s": "makespan, s",
        },
        drawn="qoe",
        claims=claims,
    )  # fmt: skip


def _together(batch: int) -> Figure:
    return Figure(
        title=f"Chats and code completions at once, batches of at most {batch}: Qwen2.5-7B on two V100",
        source="SLO-aware annealing, section 5.2 and figure 7",
        scenario="annealing-v100.yaml",
        at_once=(4, 6, 8, 10, 20, 40),
        seqs_max=batch,
        arms=_arms(("fcfs", "edf", "annealing", "annealing-continuous", "unified")),
        shown={
            "met": "met", "latency_s": "latency, s", "met_per_latency_s": "G, 1/s",
            "ttft_p50_s": "TTFT P50, s", "preemptions": "preemptions", "tokens_per_s": "tok/s",
            "longest_wait_s": "longest wait, s", "makespan_s": "makespan, s",
        },
        drawn="met",
        claims=(_ATTAINMENT, _LATENCY, _PER_LATENCY),
    )  # fmt: skip


_ATTAINMENT: Final = Claim(
    "objectives met, annealing against fcfs, best draw", "up to +33.4%", _best_draw("annealing", "met")
)
_LATENCY: Final = Claim(
    "mean latency, annealing against fcfs, best draw", "up to -16.3%",
    _best_draw("annealing", "latency_s", min),
)  # fmt: skip
_PER_LATENCY: Final = Claim(
    "G, annealing against fcfs, best draw", "up to +46.5%", _best_draw("annealing", "met_per_latency_s")
)

FIGURES: Final[Mapping[str, Figure]] = {
    "andes-rate": _by_load(
        title="Quality of experience by request rate: OPT-66B on four A100, 600 requests",
        source="Andes, section 6.2: mean QoE by rate, and the highest rate at QoE 0.9",
        requests=600,
        loads=(0.9, 1.0, 1.15, 1.3, 1.5, 1.8, 2.2),
        claims=(
            Claim("highest rate at a QoE of 0.9, andes over fcfs", "up to 1.6x", _rate_gain("andes", "qoe")),
            Claim("the same by QoE*", "none", _rate_gain("andes", "qoe_star")),
            Claim("the same by QoE*, unified over fcfs", "none", _rate_gain("unified", "qoe_star")),
            Claim("mean QoE, andes over fcfs", "up to 3.2x", _most_gain("andes", "qoe")),
            Claim("preemptions per request of andes at 0.9", "below 0.5", _at("andes", "preemptions", 0.9)),
        ),
    ),
    "andes-overload": _by_load(
        title="Quality of experience below and above saturation: OPT-66B on four A100, 1 000 requests",
        source="Andes, section 6.2, with a longer trace",
        requests=1000,
        loads=(0.9, 1.15),
        claims=(
            Claim("QoE of andes at 0.9", "about 1", _at("andes", "qoe", 0.9)),
            Claim("preemptions per request of andes at 0.9", "below 0.5", _at("andes", "preemptions", 0.9)),
            Claim("mean QoE, andes over fcfs", "up to 3.2x", _most_gain("andes", "qoe")),
            Claim("smooth goodput, unified over fcfs", "none", _most_gain("unified", "smooth_goodput")),
        ),
    ),
    "tokenflow-a100": _burst(
        "tokenflow-a100.yaml", "Llama-3-8B on an A100 with 40 000 tokens of KV cache", kv_tokens=40_000
    ),
    "tokenflow-4090": _burst("tokenflow-4090.yaml", "Llama-3-8B on an RTX 4090"),
    "tokenflow-h200": _burst(
        "tokenflow-h200.yaml", "Llama-3-8B on an H200 with 198 000 tokens of KV cache",
        requests=200, output_tokens=4096, kv_tokens=198_000,
    ),
    "annealing-v100-1": _together(1),
    "annealing-v100-2": _together(2),
    "annealing-v100-4": _together(4),
}  # fmt: skip
