"""The proto and what it is generated into, against the HTTP API."""

import subprocess
from pathlib import Path

from qlm.gateway.api.bodies.parts import SloBody, TaskBody
from qlm.gateway.api.fields.requests import TaskFields
from qlm.gateway.api.messages import Message
from qlm.gateway.api.rendered_fields import RENDERED
from qlm.gateway.api.schema import ChatBody, CompletionBody
from qlm.gateway.rpc import messages
from qlm.gateway.rpc.v1 import qlm_pb2 as pb

ROOT = Path(__file__).resolve().parents[3]
STUBS = ("qlm_pb2.py", "qlm_pb2.pyi", "qlm_pb2_grpc.py")

HTTP_ONLY = {"stream", "stream_options", "metadata", "safety_identifier", "max_completion_tokens", *RENDERED}
HTTP_ONLY |= messages.OF_HTTP_ANSWERS
HTTP_ONLY |= {"store", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "request_id"}
"""What has no place of its own in a request: it changes the form of the answer, or is for `more`."""

MESSAGE_HTTP_ONLY = {"tool_calls", "tool_call_id", "reasoning", "annotations", "cache_control"}

RPC_ONLY = {"prompt_token_ids", "idempotency_key", "more"}


def fields_of(message: type) -> set[str]:
    return set(message.DESCRIPTOR.fields_by_name)  # type: ignore[attr-defined]


def test_the_stubs_are_what_the_proto_generates(tmp_path: Path) -> None:
    script = ROOT / "scripts/generate_rpc.sh"
    subprocess.run([script, tmp_path], check=True, capture_output=True, timeout=100)
    for name in STUBS:
        path = Path("qlm/gateway/rpc/v1") / name
        fresh, kept = (tmp_path / path).read_text("utf-8"), (ROOT / "gateway" / path).read_text("utf-8")
        assert fresh == kept, f"{path} is not current: run `make rpc`"


def test_grpc_requests_have_the_fields_of_http() -> None:
    http = set(CompletionBody.model_fields) | set(ChatBody.model_fields)
    assert fields_of(pb.GenerateRequest) - RPC_ONLY == http - HTTP_ONLY
    assert fields_of(pb.Slo) == set(SloBody.model_fields)
    assert fields_of(pb.Task) == set(TaskBody.model_fields)
    assert fields_of(pb.TaskStatus) == set(TaskFields.__annotations__)
    assert fields_of(pb.Message) == set(Message.model_fields) - MESSAGE_HTTP_ONLY
