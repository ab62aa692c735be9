"""Asks the control plane whether calls are alive. A program of its own: the supervisor stays small without gRPC.

    python -m phalanx.embedded.activity <cluster.json>      prints the number of live calls

Answers with exit status 1 when the control plane does not answer: then nothing is known to be alive.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from phalanx.embedded.record import Record, read_record

_TIMEOUT_S = 5.0
_NO_ANSWER = 1


def is_busy(record_path: Path) -> bool:
    """Says whether calls are alive, by running this program: bounded, and False when nobody answers."""
    command = (sys.executable, "-P", "-m", "phalanx.embedded.activity", str(record_path))
    try:
        answer = subprocess.run(  # noqa: TID251 (a bounded question, once in ten minutes)
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=3 * _TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return answer.returncode == 0 and answer.stdout.strip() != b"0"


def live_calls(record: Record) -> int:
    """Returns how many calls have not ended. Raises grpc.RpcError."""
    import grpc

    from phalanx_proto.v1 import control_pb2, control_pb2_grpc

    credentials = grpc.ssl_channel_credentials(Path(record.ca).read_bytes())
    with grpc.secure_channel(record.address, credentials) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        metadata = (("authorization", f"Bearer {record.token}"),)
        request = control_pb2.ListCallsRequest(limit=100)
        return len(stub.ListCalls(request, metadata=metadata, timeout=_TIMEOUT_S).calls)


def main() -> int:
    import grpc

    record = read_record(Path(sys.argv[1]))
    if record is None:
        return _NO_ANSWER
    try:
        sys.stdout.write(f"{live_calls(record)}\n")
    except grpc.RpcError:
        return _NO_ANSWER
    return 0


if __name__ == "__main__":
    sys.exit(main())
