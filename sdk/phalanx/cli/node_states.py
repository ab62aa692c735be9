"""What `gpuctl cordon`, `drain` and `uncordon` share: saying it of each node, and telling what it is then."""

from __future__ import annotations

from phalanx.cli.commands.nodes import why
from phalanx.cli.options import Session
from phalanx.cli.render import Screen
from phalanx.core.clock import SystemClock
from phalanx.core.states import NodeState
from phalanx.core.views import NodeView


def say(
    session: Session, nodes: tuple[str, ...], state: NodeState, *, reason: str = "", deadline_ms: int = -1
) -> tuple[NodeView, ...]:
    """Puts every node into the state, and shows each as it is then."""
    client, screen = session.client(), session.screen()
    views: list[NodeView] = []
    for node in nodes:
        view = client.set_node_state(node, state.value, reason=reason, deadline_ms=deadline_ms)
        views.append(view)
        show(screen, view)
    return tuple(views)


def show(screen: Screen, view: NodeView) -> None:
    if screen.look.json:
        screen.emit(view)
        return
    words = why(view, SystemClock().wall_ms())
    screen.note(f"{view.state}  {view.node_id}{f'  {words}' if words else ''}")
