"""Webhooks on a real cluster of two replicas: told, verified, told again by the next leader, and seen by people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import phalanx
from phalanx import webhooks
from tests.support.cluster import Cluster
from tests.support.shared_cluster import connected_cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)


class Receiver(ThreadingHTTPServer):
    """Answers with ``status``, and keeps what it got."""

    status = 500

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hooks/s3cr3t"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((dict(self.headers.items()), body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Says nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with connected_cluster(
        folder, gpus_per_agent=1, replicas=2, control_flags=("--allow-private-webhooks",)
    ) as running:
        yield running


def double(number: int) -> int:
    return number * 2


def gpuctl(cluster: Cluster, *words: str, replica: int = 0) -> str:
    environment = {**os.environ, **cluster.env(replica), "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "phalanx.cli.main", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_map_and_a_function_of_its_own_are_told_and_verified(cluster: Cluster, receiver: Receiver) -> None:
    receiver.status = 204
    calls = phalanx.gpu_function(gpus=0)(double).options(webhook=receiver.url).spawn_map([1, 2])
    assert list(calls) == [2, 4]
    assert phalanx.gpu_function(gpus=0, webhook=receiver.url)(double).remote(3) == 6
    wait_until(lambda: len(receiver.got) == 3, "three ends are told", 20)
    secret = gpuctl(cluster, "webhook", "secret").strip()
    said = [webhooks.verify(headers, body, secret) for headers, body in receiver.got]
    assert {one["state"] for one in said} == {"succeeded"}
    assert {calls.call(n).id for n in range(2)} < {one["id"] for one in said}
    assert sorted(str(one["map"]) for one in said) == ["None", *[calls.id.rpartition("-")[0]] * 2]


@pytest.mark.slow
def test_the_next_leader_tells_what_the_former_one_could_not(cluster: Cluster, receiver: Receiver) -> None:
    call = phalanx.gpu_function(gpus=0)(double).options(webhook=receiver.url).spawn(1)
    assert call.get(timeout=30) == 2
    client = cluster.connect()
    wait_until(lambda: "answered 500" in client.get_call(call.id).webhook, "the failed attempt is noted", 20)
    old = json.loads(gpuctl(cluster, "webhook", "secret", "--json"))
    new = json.loads(gpuctl(cluster, "webhook", "rotate", "--json"))
    assert (old["version"], new["version"], old["secret"] != new["secret"]) == (0, 1, True)
    receiver.status = 200
    left = 1 - cluster.kill_leader()
    client = cluster.connect(left)
    wait_until(lambda: len(receiver.got) == 2, "the next leader tells it", 40)
    for secret in (old["secret"], new["secret"]):
        assert webhooks.verify(*receiver.got[1], secret)["id"] == call.id
    with pytest.raises(webhooks.WebhookError):
        webhooks.verify(*receiver.got[0], new["secret"])
    wait_until(lambda: client.get_call(call.id).webhook.startswith("delivered after 2 attempts"), "it is noted", 20)
    told = gpuctl(cluster, "explain", call.id, replica=left)
    assert f"tells  delivered after 2 attempts: http://127.0.0.1:{receiver.server_port}/…, answered 200" in told
    assert "s3cr3t" not in told
