"""The metrics of vLLM that agents read, in Prometheus text format."""

from collections.abc import Iterator

from qlm.simulator.engine.model import EngineModel


def metrics_text(engine: EngineModel, model: str, *, sleep_level: int, lag_s: float) -> str:
    """Format gauges and counters under vLLM's names.

    Args:
        engine: Engine to read.
        model: Model name for clients.
        sleep_level: 0 while awake, else 1 or 2.
        lag_s: Real seconds by which the emulator has fallen behind.
    """
    label = f'engine="0",model_name="{model}"'
    lines: list[str] = []
    for name, kind, value in _samples(engine, lag_s):
        lines += [f"# TYPE {name} {kind}", f"{name}{{{label}}} {float(value)}"]
    states = ("awake", "weights_offloaded", "discard_all")
    lines.append("# TYPE vllm:engine_sleep_state gauge")
    for level, state in enumerate(states):
        lines.append(
            f'vllm:engine_sleep_state{{{label},sleep_state="{state}"}} {float(level == sleep_level)}'
        )
    lines += ["# TYPE vllm:cache_config_info gauge", _cache_config(engine)]
    return "\n".join(lines) + "\n"


def _samples(engine: EngineModel, lag_s: float) -> Iterator[tuple[str, str, float]]:
    counters = engine.counters
    yield "vllm:num_requests_running", "gauge", engine.running
    yield "vllm:num_requests_waiting", "gauge", engine.waiting
    yield "vllm:kv_cache_usage_perc", "gauge", engine.kv_usage
    yield "vllm:prefix_cache_queries_total", "counter", counters.prefix_queries
    yield "vllm:prefix_cache_hits_total", "counter", counters.prefix_hits
    yield "vllm:num_preemptions_total", "counter", counters.preemptions
    yield "vllm:prompt_tokens_total", "counter", counters.prompt_tokens
    yield "vllm:generation_tokens_total", "counter", counters.generation_tokens
    yield "qlm:emulator_lag_seconds_total", "counter", lag_s


def _cache_config(engine: EngineModel) -> str:
    """Format the cache's size as vLLM does: it counts the reserved null block, which no request can use."""
    capacity = engine.capacity
    blocks = capacity.kv_blocks + 1
    tokens = blocks * capacity.block_tokens
    return (
        f'vllm:cache_config_info{{block_size="{capacity.block_tokens}",enable_prefix_caching="True",engine="0",'
        f'kv_cache_size_tokens="{tokens}",num_gpu_blocks="{blocks}"}} 1.0'
    )
