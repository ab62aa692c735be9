"""gpuctl and the client where something is not as usual: outputs that are no terminals, and versions that differ."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest

import phalanx
from phalanx import wire_errors
from phalanx_proto.v1 import control_pb2
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster

GPUCTL = f"{sys.executable} -m phalanx.cli.main"
LONG = "n" * 200


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with connected_cluster(tmp_path_factory.mktemp("cluster")) as running:
        phalanx.gpu_function(gpus=0, scaledown_window=1, name=LONG)(abs).spawn(1).get(60)
        yield running


def shell(cluster: Cluster, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], env=cluster.env() | environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "how",
    ["| cat", "| head -n 1", "> list.txt && cat list.txt", "2>&1 >/dev/full | cat", ">&- 2>&1 </dev/null"],
    ids=["pipe", "head", "file", "full", "closed"],
)
def test_a_list_goes_wherever_it_is_sent_without_a_traceback(cluster: Cluster, how: str) -> None:
    done = shell(cluster, f"cd {cluster.tmp_path} && {GPUCTL} ps --all {how}", COLUMNS="40")
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    if how in ("| cat", "> list.txt && cat list.txt"):
        assert LONG in done.stdout


@pytest.mark.parametrize("command", ["ps --all", "nodes", "status", "cost", "config show"])
def test_json_is_all_that_stands_on_standard_output(cluster: Cluster, command: str) -> None:
    done = shell(cluster, f"{GPUCTL} {command} --json", FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()]


def test_a_newer_client_is_told_that_versions_differ(cluster: Cluster) -> None:
    credentials = grpc.ssl_channel_credentials(cluster.ca.read_bytes())
    with grpc.secure_channel(cluster.address(), credentials) as channel:
        ask = channel.unary_unary(
            "/phalanx.v1.Control/OfALaterVersion",
            request_serializer=control_pb2.Empty.SerializeToString,
            response_deserializer=control_pb2.Empty.FromString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            ask(control_pb2.Empty(), metadata=(("authorization", f"Bearer {cluster.token}"),), timeout=10)
    error = wire_errors.to_exception(caught.value)
    assert isinstance(error, phalanx.VersionError), repr(error)
    assert "another version" in str(error)
    assert "gpuctl doctor" in error.hint
