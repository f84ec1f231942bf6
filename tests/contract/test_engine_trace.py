"""A real vLLM makes its own span a part of the trace that the agent hands it."""

import secrets
from collections.abc import Callable

import pytest

from qlm.agents.engines.command import VllmSettings, vllm_command
from qlm.agents.engines.vllm.client import VllmEngine
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from support.gateway import until
from support.otlp import collecting
from support.vllm_cpu import VllmOptions, VllmServer


@pytest.mark.timeout(400)
async def test_a_real_engine_continues_the_trace_of_its_caller(
    start_vllm: Callable[..., VllmServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        endpoint = f"{collector.url}/v1/traces"
        command = vllm_command(
            VllmSettings(model="tiny", served_model_name="tiny", port=1, otlp_traces_endpoint=endpoint)
        )
        at = command.argv.index("--otlp-traces-endpoint")
        for name, value in {**command.env, "OTEL_BSP_SCHEDULE_DELAY": "100"}.items():
            monkeypatch.setenv(name, value)
        server = start_vllm(VllmOptions(extra_args=command.argv[at : at + 2]))
        engine = VllmEngine(server.base_url, "tiny", seqs_max=8)
        trace, caller = secrets.token_hex(16), secrets.token_hex(8)
        sampling = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)
        call = EngineCall(
            call_id="traced",
            prompt_ids=(5, 6, 7),
            sampling=sampling,
            traceparent=f"00-{trace}-{caller}-01",
        )
        try:
            assert sum([len(chunk.token_ids) async for chunk in engine.generate(call)]) == 4
        finally:
            await engine.close()
        await until(lambda: "llm_request" in collector.of(trace), timeout_s=60)
        span = collector.of(trace)["llm_request"]
        assert span.parent == caller
        assert span.attributes["gen_ai.usage.prompt_tokens"] == 3
        assert span.attributes["gen_ai.usage.completion_tokens"] == 4
        assert span.service == "vllm"
