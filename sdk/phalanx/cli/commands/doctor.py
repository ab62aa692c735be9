"""gpuctl doctor: what is missing on this machine, and how to fix it."""

from __future__ import annotations

from phalanx.cli.checks import Finding, local_findings
from phalanx.cli.exits import Exit
from phalanx.cli.options import Command, Session
from phalanx.cli.target import open_client
from phalanx.core.errors import AuthError, ConnectionFailedError, PhalanxError

_ICONS = {"ok": "✓", "warning": "!", "problem": "✗"}


def doctor(session: Session) -> int:
    """Checks this machine and the configured cluster; ends with 1 when something does not work."""
    screen = session.screen()
    findings = [*local_findings(), cluster(session)]
    for finding in findings:
        if screen.look.json:
            screen.emit(finding)
            continue
        screen.data(f"{_ICONS[finding.level]} {finding.name:<14} {finding.text}")
        if finding.fix:
            screen.data(f"  {'':<14} fix: {finding.fix}")
    return Exit.FAILED if any(finding.level == "problem" for finding in findings) else Exit.OK


def cluster(session: Session) -> Finding:
    """Whether the configured control plane answers and takes the token."""
    try:
        target = session.target()
        client = open_client(target, timeout_s=session.timeout_s)
        info, nodes = client.server_info(), client.list_nodes()
    except AuthError as e:
        return Finding("cluster", "problem", str(e), "set PHALANX_TOKEN, or `gpuctl token create` on the server")
    except ConnectionFailedError as e:
        return Finding("cluster", "warning", str(e).partition("\n")[0], "gpuctl up, or set PHALANX_ADDRESS")
    except PhalanxError as e:
        return Finding("cluster", "problem", str(e), e.hint or "gpuctl config show --origin")
    text = f"{target.connection.address} ({target.origin}): version {info.version}, {info.role}, {len(nodes)} nodes"
    return Finding("cluster", "ok", text)


command = Command(
    "doctor",
    callback=doctor,
    help="What is missing on this machine and how to fix it: Python, packages, store, namespaces, memory, GPU, ports, "
    "disk, configuration and token.",
    examples=("gpuctl doctor", "gpuctl doctor --json | jq 'select(.level != \"ok\")'"),
)
