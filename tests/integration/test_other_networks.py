"""Gangs where networks are not as usual: nodes with IPv6 alone, and a host name that leads nowhere near them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import phalanx
from tests.support.shared_cluster import connected_cluster

pytestmark = [pytest.mark.netns, pytest.mark.slow]
HOSTS = ("fd00::1", "fd00::2")
NAME = "named-after-nothing"
SETUP = f"""
set -e
ip link set lo up
ip link add name nodes type veth peer name decoy
ip link set nodes up
ip link set decoy up
ip addr add 10.9.9.9/24 dev decoy
for host in {" ".join(HOSTS)}; do ip -6 addr add $host/128 dev nodes nodad; done
hostname {NAME}
mount --bind "$1" /etc/hosts
shift
exec "$@"
"""


def sum_and_interface() -> tuple[int, str, str]:
    import socket

    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total.item()), os.environ["GLOO_SOCKET_IFNAME"], socket.gethostbyname(socket.gethostname())


def main() -> None:
    function = phalanx.gpu_function(gpus=4, nodes=2, scaledown_window=1, returns="all")(sum_and_interface)
    with (
        tempfile.TemporaryDirectory() as folder,
        connected_cluster(Path(folder), agents=2, gpus_per_agent=2, hosts=HOSTS),
    ):
        print(set(function.remote()), set(function.spawn().get(60)), flush=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
def test_nodes_that_reach_each_other_by_ipv6_alone_under_a_name_of_another_interface(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {NAME}\n")
    inside = ["bash", "-c", SETUP, "setup", str(hosts), sys.executable, "-m", "tests.integration.test_other_networks"]
    done = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", *inside], capture_output=True, text=True, timeout=120, check=False
    )
    seen = {(4, "nodes", "127.0.1.1")}
    assert done.stdout.splitlines()[-1:] == [f"{seen} {seen}"], done.stdout + done.stderr


if __name__ == "__main__":
    main()
