"""An answer that comes late says so wherever one may look, and by about the same time."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import httpx
import openai
import pytest

from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.doctor import faults
from support.flaky import wait_until
from support.ports import free_port
from support.qlm_process import QLM, QlmProcess, emulated, serving

MODEL: Final = "mistral-7b"
OTHER: Final = "llama-3-8b"
DEADLINE_MS: Final = 200
TOKENS: Final = 1500
"""Long enough that three at once take more than a second beyond the deadline."""

NEAR_S: Final = 0.25
"""Clocks of gateway and store, and writes between them."""

SOON: Final = {"slo": {"deadline_ms": 10_000}}
"""Within reach only if an idle model leaves for another one within seconds."""

BODY: Final = {"max_tokens": TOKENS, "ignore_eos": True, "slo": {"deadline_ms": DEADLINE_MS}}


@pytest.fixture(scope="module")
def served() -> Iterator[QlmProcess]:
    with serving(emulated(MODEL, OTHER, time_scale=0.1, grpc={"port": free_port()})) as process:
        yield process


@pytest.fixture(scope="module")
def late(served: QlmProcess) -> dict[str, dict[str, Any]]:
    """Three requests that load the one instance at the same time, and what their clients saw."""
    seen: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[QlmProcess], dict[str, Any]]] = {
        "plain": _plain,
        "stream": _stream,
        "grpc": _grpc,
    }
    threads = [
        threading.Thread(target=lambda name=name, call=call: seen.update({name: call(served)}))
        for name, call in calls.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.keys() == calls.keys()
    return seen


def _client(served: QlmProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def _plain(served: QlmProcess) -> dict[str, Any]:
    with _client(served) as client:
        raw = client.completions.with_raw_response.create(model=MODEL, prompt="Hi", extra_body=BODY)
    return {"id": raw.parse().id, "headers": raw.headers}


def _stream(served: QlmProcess) -> dict[str, Any]:
    with _client(served) as client:
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Hi"}],
                stream=True,
                stream_options={"include_usage": True},
                extra_body=BODY,
            )
        )
    *_, last, usage = (chunk.model_dump() for chunk in chunks)
    return {"id": last["id"], "last": last["qlm"], "usage": usage["usage"]["qlm"]}


def _grpc(served: QlmProcess) -> dict[str, Any]:
    with grpc.insecure_channel(served.grpc_address) as channel:
        slo = pb.Slo(deadline_ms=DEADLINE_MS)
        asked = pb.GenerateRequest(model=MODEL, prompt="Hi", max_tokens=TOKENS, ignore_eos=True, slo=slo)
        call = QlmStub(channel).Generate(asked)
        messages = list(call)
    ended = messages[-1].ended
    return {"id": messages[0].started.id, "ended": ended, "trailers": dict(call.trailing_metadata())}


def _state(served: QlmProcess, id: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{served.url}/v1/requests/{id}", timeout=120).raise_for_status().json()
    assert found["met"] is False
    assert found["late_by_s"] == pytest.approx(
        found["ended_s"] - found["arrival_s"] - DEADLINE_MS / 1000, abs=1e-3
    )
    assert found["late_by_s"] > 1
    return found


def _qlm(served: QlmProcess, *arguments: str) -> str:
    command = [str(QLM), *arguments, "--url", served.admin_url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_whole_answer_has_headers(served: QlmProcess, late: dict[str, dict[str, Any]]) -> None:
    headers, id = late["plain"]["headers"], late["plain"]["id"].removeprefix("cmpl-")
    assert headers["x-qlm-met"] == "false"
    assert int(headers["x-qlm-late-ms"]) / 1000 == pytest.approx(_state(served, id)["late_by_s"], abs=NEAR_S)


def test_a_stream_ends_with_it_for_an_unmodified_client(
    served: QlmProcess, late: dict[str, dict[str, Any]]
) -> None:
    state = _state(served, late["stream"]["id"].removeprefix("chatcmpl-"))
    assert late["stream"]["last"] == late["stream"]["usage"]
    assert late["stream"]["last"]["met"] is False
    assert late["stream"]["last"]["late_ms"] / 1000 == pytest.approx(state["late_by_s"], abs=NEAR_S)


def test_grpc_has_it_in_the_last_message_the_trailers_and_the_state(
    served: QlmProcess, late: dict[str, dict[str, Any]]
) -> None:
    ended, trailers, id = (late["grpc"][key] for key in ("ended", "trailers", "id"))
    assert (ended.HasField("met"), ended.met) == (True, False)
    assert (trailers["x-qlm-met"], trailers["x-qlm-late-ms"]) == ("false", str(ended.late_ms))
    assert ended.late_ms / 1000 == pytest.approx(_state(served, id)["late_by_s"], abs=NEAR_S)
    with grpc.insecure_channel(served.grpc_address) as channel:
        status = QlmStub(channel).Get(pb.GetRequest(id=id)).request
    assert (status.HasField("met"), status.met, status.instance) == (True, False, "i0")
    assert status.late_by_s == pytest.approx(_state(served, id)["late_by_s"])


def test_an_ended_request_says_where_it_ran(served: QlmProcess, late: dict[str, dict[str, Any]]) -> None:
    assert _state(served, late["grpc"]["id"])["instance"] == "i0"


def test_qlm_lists_late_requests_and_how_late_classes_are(
    served: QlmProcess, late: dict[str, dict[str, Any]]
) -> None:
    with _client(served) as client:
        raw = client.completions.with_raw_response.create(model=MODEL, prompt="Hi", max_tokens=4)
    assert (raw.headers["x-qlm-met"], raw.headers["x-qlm-late-ms"]) == ("true", "0")
    ids = {each["id"].removeprefix("chatcmpl-").removeprefix("cmpl-") for each in late.values()}
    listed = json.loads(_qlm(served, "requests", "--late", "--json"))["requests"]
    assert {each["id"] for each in listed} == ids
    assert len(re.findall(r"\bby \d+\.\ds\b", _qlm(served, "requests", "--late"))) == len(ids)
    classes = {each["slo_class"]: each for each in json.loads(_qlm(served, "queues", "--json"))["attainment"]}
    missed = classes["deadline-200ms"]
    assert (missed["judged"], missed["missed"]) == (3, 3)
    assert missed["max_late_by_s"] == max(each["late_by_s"] for each in listed)
    assert classes["deadline-60s"]["missed"] == 0
    assert "deadline-200ms" in _qlm(served, "queues")


def test_doctor_names_a_class_that_is_late_with_what_to_add(
    served: QlmProcess, late: dict[str, dict[str, Any]]
) -> None:
    found = faults(served.admin_url)[f"objective deadline-200ms of {MODEL}"]
    assert found.detail.startswith("3 of 3 requests were late, by ")
    assert found.remedy.startswith("add ")


def test_doctor_names_an_instance_that_thrashes_with_what_to_do() -> None:
    check = "model swaps of i0"
    # An instance of its own: the lengths that the other one has learned let its model stay for a minute.
    with serving(emulated(MODEL, OTHER)) as process:
        with _client(process) as client:
            for model in (OTHER, MODEL, OTHER, MODEL):  # three swaps back
                client.completions.create(model=model, prompt="Hi", max_tokens=2, extra_body=SOON)
        wait_until(lambda: check in faults(process.admin_url), "the swaps are counted")
        found = faults(process.admin_url)[check]
    assert "swaps brought back a model within 60 s" in found.detail
    assert f"give one of {MODEL}, {OTHER} an instance of its own" in found.remedy


EARLIER_SDK: Final = "openai>=2,<3"
"""An earlier major version than that of the other tests."""

BOTH_CALLS: Final = """
import json, sys
import openai
url, model, body = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
raw = client.completions.with_raw_response.create(model=model, prompt="Hi", extra_body=body)
chat = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "extra_body": body}
chunks = client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
*_, last, usage = (chunk.model_dump() for chunk in chunks)
seen = {"version": openai.__version__, "last": last["qlm"], "usage": usage["usage"]["qlm"]}
print(json.dumps(seen | {"met": raw.headers["x-qlm-met"], "late_ms": raw.headers["x-qlm-late-ms"]}))
"""


def test_an_earlier_major_version_of_the_sdk_sees_it_in_a_whole_answer_and_in_a_stream(
    served: QlmProcess,
) -> None:
    assert not openai.__version__.startswith("2.")
    # Within 10 µs no answer is in time, without any load.
    body = json.dumps({"max_tokens": 4, "slo": {"deadline_ms": 0.01}})
    uv = shutil.which("uv", path=str(QLM.parent)) or "uv"
    environment = ["--isolated", "--no-project", "--python", sys.executable, "--with", EARLIER_SDK]
    argv = [uv, "--quiet", "run", *environment, "python", "-c", BOTH_CALLS, f"{served.url}/v1", MODEL, body]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["version"].startswith("2.")
    assert (seen["met"], int(seen["late_ms"]) > 0) == ("false", True)
    assert seen["last"] == seen["usage"]
    assert (seen["last"]["met"], seen["last"]["late_ms"] > 0) == (False, True)
