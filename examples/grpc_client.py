"""Stream an answer over gRPC; when its gateway dies, go on at another one where the stream broke off."""

import argparse
import itertools
import time
import uuid
from collections.abc import Iterator, Sequence

import grpc

from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub

TRIES_MAX = 10


def answer(gateways: Sequence[str], request: pb.GenerateRequest) -> Iterator[str]:
    """Yield the text of an answer as it comes, each piece once."""
    id, offset = "", 0
    for tries, gateway in enumerate(itertools.cycle(gateways), start=1):
        with grpc.insecure_channel(gateway) as channel:
            stub = QlmStub(channel)
            resume = pb.ResumeRequest(id=id, offset=offset)
            try:
                for message in stub.Resume(resume) if id else stub.Generate(request):
                    id = message.started.id or id
                    if message.HasField("delta"):
                        offset = message.delta.offset
                        yield message.delta.text
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or tries == TRIES_MAX:
                    raise
        time.sleep(0.5)


def main() -> None:
    """Print the answer to a prompt, which is to come within 20 s."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="name of a served model")
    parser.add_argument("prompt")
    parser.add_argument("gateways", nargs="*", metavar="HOST:PORT", default=["127.0.0.1:8001"])
    given = parser.parse_args()
    request = pb.GenerateRequest(
        model=given.model,
        prompt=given.prompt,
        max_tokens=100,
        slo=pb.Slo(deadline_ms=20_000),
        idempotency_key=uuid.uuid4().hex,  # if the first try breaks before it tells the id
    )
    for piece in answer(given.gateways, request):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
