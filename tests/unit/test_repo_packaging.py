"""What pip users get: a small bare install, a wheel with the page in it, and code that old and new protobuf load."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
BARE_LIMIT_BYTES = 30_000_000
LOWEST_PROTOBUF = "5.27.2"
ROUND_TRIP = """
import google.protobuf
from phalanx.core import messages
from phalanx.wire import unwrap_from_agent, wrap_from_agent
from phalanx_proto.v1 import agent_pb2, control_pb2_grpc, agent_pb2_grpc
sent = messages.Hello(node=messages.NodeInfo(node_id="n", gpus=(messages.GpuInfo(uuid="g"),)), protocol=3)
back = unwrap_from_agent(agent_pb2.FromAgent.FromString(wrap_from_agent(sent, seq=4).SerializeToString()))
assert back == sent, back
print(google.protobuf.__version__)
"""


def run(*command: object, cwd: Path = ROOT) -> str:
    answer = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"{command}\n{answer.stdout[-3000:]}\n{answer.stderr[-3000:]}"
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the sdist, as an index would have it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder)
    sdist = next(folder.glob("*.tar.gz"))
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, sdist)
    return next(folder.glob("*.whl"))


def environment(folder: Path, *packages: object) -> Path:
    """Makes a fresh environment with the packages and returns its python."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    return python


def test_the_wheel_holds_the_page_and_every_package_and_no_page_sources(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "phalanx_control/web/static/index.html" in names
    assert any(name.startswith("phalanx_control/web/static/main-") for name in names)
    assert {name.split("/")[0] for name in names if not name.startswith("phalanx-")} == {
        "phalanx",
        "phalanx_agent",
        "phalanx_control",
        "phalanx_proto",
    }
    assert not [name for name in names if "/web/ui/" in name or "node_modules" in name]
    assert any(name.endswith(".lua") for name in names)


def test_a_bare_install_is_small_and_its_command_line_works(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "bare", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    tools = ("pip", "setuptools", "_distutils_hack", "pkg_resources")
    sizes = {
        entry.name: sum(f.stat().st_size for f in [entry, *entry.rglob("*")] if f.is_file() and f.suffix != ".pyc")
        for entry in site.iterdir()
        if not entry.name.startswith(tools)
    }
    assert sum(sizes.values()) <= BARE_LIMIT_BYTES, sizes
    assert run(python.with_name("gpuctl"), "--version", cwd=tmp_path).startswith("gpuctl ")
    assert "gpuctl" in run(python.with_name("gpuctl"), "--help", cwd=tmp_path)


@pytest.mark.parametrize(
    "versions", [(f"protobuf=={LOWEST_PROTOBUF}", "grpcio==1.66.2"), ("protobuf",)], ids=["lowest", "newest"]
)
def test_messages_travel_with_the_lowest_and_the_newest_protobuf(
    wheel: Path, tmp_path: Path, versions: tuple[str, ...]
) -> None:
    python = environment(tmp_path / "env", wheel, *versions)
    version = run(python, "-c", ROUND_TRIP, cwd=tmp_path).strip()
    assert version == LOWEST_PROTOBUF or tuple(map(int, version.split("."))) > (6,)
