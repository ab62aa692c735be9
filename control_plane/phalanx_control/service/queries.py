"""What callers may read, always within their workspace. Reads the durable state and fast facts; changes nothing.

What belongs to another workspace is answered exactly as what does not exist. Nodes are shared by all workspaces, so
everybody sees them, but not who else's function runs there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.core.ids import id_raw
from phalanx.core.states import CallState
from phalanx.core.topology.names import natural_key
from phalanx.core.views import CallView, CostView, FunctionView, GangExplanation, GangView, GpuView, NodeView
from phalanx_control.archive_calls import CallArchive
from phalanx_control.archive_index import CallFilter
from phalanx_control.service.caller import caller
from phalanx_control.service.explaining import of_ended, of_living
from phalanx_control.service.ports import StateSource
from phalanx_control.state.commands import Submit
from phalanx_control.state.model import App, Call, Function, Gang, Node, State
from phalanx_control.state.queries import children_of, held_gang, key_name, with_lines

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
MAX_FUNCTIONS = 1000
"""Functions of one name, in all the versions that were ever registered, among which archived calls are looked for."""
OTHER_USER = "other user"
_CALL_STATES = tuple(state.value for state in CallState)


_NODES_NAMED = 5


class Pictures(Protocol):
    """Turns records of the state into what users are shown; `phalanx_control.service.pictures` is the one there is."""

    def call(self, state: State, call: Call) -> CallView: ...

    def gang(self, state: State, gang: Gang) -> GangView: ...

    def node(self, state: State, node: Node) -> NodeView: ...

    def function(self, state: State, app: App, name: str) -> FunctionView: ...

    def label(self, state: State, function_id: str) -> str: ...

    def call_cost(self, state: State, call: Call) -> CostView: ...

    def costs(self, state: State, workspace: str, group_by: str) -> tuple[CostView, ...]: ...

    def depth(self, state: State, gang_id: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Found:
    """A call, and the picture in which it is shown: for an archived one with its ledger lines put back."""

    call: Call
    state: State


class Queries:
    """Answers for the present caller."""

    def __init__(self, source: StateSource, pictures: Pictures, archive: CallArchive) -> None:
        self._source = source
        self._pictures = pictures
        self._archive = archive

    async def find(self, call_id: str) -> Found:
        """Returns a call of the state or of the archive. Raises NotFoundError where the caller's workspace has none."""
        call = self._state.calls.get(call_id)
        if call is None and is_call_id(call_id):
            call = await self._archive.find(call_id)
        if call is None or call.owner.workspace != _workspace():
            raise NotFoundError(f"no call {call_id[:80]!r}", hint="gpuctl ps --all")
        return Found(call, await self._picture_of((call,)))

    def submitted(self, function: Function, command: Submit) -> str:
        """Returns the id of the call that a command which was decided stands for: its own, or its key's first one."""
        if command.call_id in self._state.calls:
            return command.call_id
        use = self._state.keys.get(key_name(function, command.terms.idempotency_key))
        return use.call_id if use is not None else command.call_id

    async def archived(self, call_id: str) -> Call | None:
        """Returns a call that has left the state, as far as this replica knows, so that its id is not used again."""
        if call_id in self._state.calls:
            return None
        call = await self._archive.known(call_id)
        return call if call is not None and call.owner.workspace == _workspace() else None

    async def calls(
        self, *, state: str = "", function: str = "", limit: int = 0, ended_too: bool = False, parent: str = ""
    ) -> tuple[CallView, ...]:
        """Returns the newest calls first, at most ``limit`` of them; ``state``, ``function`` and ``parent`` filter."""
        if state and state not in _CALL_STATES:
            raise InvalidSpecError(f"state {state[:40]!r}: use one of {', '.join(map(repr, _CALL_STATES))}")
        if not 0 <= limit <= MAX_LIMIT:
            raise InvalidSpecError(f"limit {limit}: use 1 to {MAX_LIMIT}")
        limit = limit or DEFAULT_LIMIT
        found = {call.id: call for call in self._matching(state, function, ended_too, parent)}
        if ended_too or CallState(state or CallState.QUEUED).terminal:
            for call in await self._archive.newest(self._filter(state, function, limit, parent)):
                found.setdefault(call.id, call)
        newest = heapq.nlargest(limit, found.values(), key=lambda call: (call.submitted_wall_ms, call.id))
        picture = await self._picture_of(newest)
        return tuple(self._pictures.call(picture, call) for call in newest)

    async def states(self, call_ids: tuple[str, ...]) -> list[str]:
        """Returns the calls' states, in order; "" for one that the caller's workspace does not have."""
        if len(call_ids) > MAX_LIMIT:
            raise InvalidSpecError(f"{len(call_ids)} call ids at once: ask for {MAX_LIMIT} at most")
        here = {call_id: self._state.calls.get(call_id) for call_id in call_ids}
        gone = [call_id for call_id, call in here.items() if call is None]
        states = await self._archive.states(_workspace(), gone) if gone else {}
        for call_id, call in here.items():
            if call is not None and call.owner.workspace == _workspace():
                states[call_id] = call.state.value
        return [states.get(call_id, "") for call_id in call_ids]

    def function(self, function_id: str) -> Function:
        found = self._state.functions.get(function_id)
        if found is None or found.owner.workspace != _workspace():
            raise NotFoundError(f"no function {function_id[:80]!r}", hint="register it again, or deploy its app")
        return found

    def app(self, name: str) -> App:
        found = self._state.apps.get(f"{_workspace()}/{name}")
        if found is None:
            raise NotFoundError(f"no app {name[:80]!r} is deployed", hint="gpuctl deploy FILE")
        return found

    def functions_of(self, app: App) -> tuple[FunctionView, ...]:
        return tuple(self._pictures.function(self._state, app, name) for name in sorted(app.functions))

    def resolve(self, app_name: str, name: str) -> tuple[FunctionView, Function]:
        """Returns a deployed function by its names."""
        app = self.app(app_name)
        if name not in app.functions:
            there = ", ".join(sorted(app.functions)[:20])
            raise NotFoundError(f"app {app_name[:80]!r} has no function {name[:80]!r}; it has {there}")
        return self._pictures.function(self._state, app, name), self._state.functions[app.functions[name]]

    def nodes(self) -> tuple[NodeView, ...]:
        state = self._state
        views = (self._pictures.node(state, state.nodes[node_id]) for node_id in sorted(state.nodes, key=natural_key))
        return tuple(masked_node(state, view, _workspace()) for view in views)

    def node(self, node_id: str) -> NodeView:
        """Returns one node. Raises NotFoundError."""
        node = self._state.nodes.get(node_id)
        if node is None:
            raise NotFoundError(f"no node {node_id[:80]!r}", hint="gpuctl nodes")
        return masked_node(self._state, self._pictures.node(self._state, node), _workspace())

    def topology(self, node_id: str) -> str:
        """Returns the node's topology as its agent wrote it. Raises NotFoundError, naming the nodes that there are."""
        node = self._state.nodes.get(node_id)
        if node is None:
            there = ", ".join(sorted(self._state.nodes, key=natural_key)[:_NODES_NAMED]) or "none"
            raise NotFoundError(f"no node {node_id[:80]!r}; there are: {there}", hint="gpuctl nodes")
        if not node.info.topology:
            raise NotFoundError(f"node {node_id} has not said what connects its GPUs", hint="upgrade its agent")
        return node.info.topology

    def gangs(self) -> tuple[GangView, ...]:
        state = self._state
        mine = (gang for gang in state.gangs.values() if gang.owner.workspace == _workspace())
        return tuple(self._pictures.gang(state, gang) for gang in sorted(mine, key=lambda gang: gang.fence))

    async def explain(self, gang_id: str) -> GangExplanation:
        """Returns what is known of a gang, ended ones included. Raises NotFoundError where the workspace had none."""
        state, workspace = self._state, _workspace()
        gang = state.gangs.get(gang_id)
        if gang is not None and gang.owner.workspace == workspace:
            return of_living(gang, self._pictures.gang(state, gang))
        keys = (f"{gang_id}/{node_id}" for node_id in state.lease_nodes.get(gang_id, ()))
        lines = [state.ledger[key] for key in keys] or await self._archive.lines_of([gang_id])
        if not lines or any(line.owner.workspace != workspace for line in lines):
            raise NotFoundError(
                f"no gang {gang_id[:80]!r}", hint="gpuctl ps --all names calls, which can be explained, too"
            )
        return of_ended(state, lines)

    async def costs(self, call_id: str, group_by: str) -> tuple[CostView, ...]:
        """Returns one call's cost, or the workspace's by function, user or phase."""
        if call_id:
            found = await self.find(call_id)
            return (self._pictures.call_cost(found.state, found.call),)
        if group_by not in ("", "function", "user", "phase"):
            raise InvalidSpecError(f"group_by {group_by[:40]!r}: use 'function', 'user' or 'phase'")
        return self._pictures.costs(self._state, _workspace(), group_by)

    def depth(self, gang_id: str) -> int:
        """Returns how many calls wait at the gang, as last reported."""
        return self._pictures.depth(self._state, gang_id)

    @property
    def _state(self) -> State:
        return self._source.state

    def _matching(self, state: str, function: str, ended_too: bool, parent: str) -> Iterator[Call]:
        workspace = _workspace()
        for call in children_of(self._state, parent) if parent else self._state.calls.values():
            if call.owner.workspace != workspace or (state and call.state != state):
                continue
            if call.state.terminal and not ended_too and not state and held_gang(self._state, call) is None:
                continue
            if function and not self._is_of(call.function_id, function):
                continue
            yield call

    def _filter(self, state: str, function: str, limit: int, parent: str) -> CallFilter:
        named = (f for f in self._state.functions if self._is_of(f, function)) if function else None
        ids = tuple(named)[:MAX_FUNCTIONS] if named is not None else None
        return CallFilter(workspace=_workspace(), state=state, function_ids=ids, limit=limit, parent=parent)

    def _is_of(self, function_id: str, function: str) -> bool:
        label = self._pictures.label(self._state, function_id)
        return function in (function_id, label, label.partition("@")[0], label.rpartition("/")[2])

    async def _picture_of(self, calls: Iterable[Call]) -> State:
        """Returns the state with the ledger lines that these calls' costs need."""
        state = self._state
        gangs = {gang for call in calls for gang in (*call.made_gangs, call.gang_id)} - {""}
        filed = [gang for gang in sorted(gangs) if gang not in state.lease_nodes]
        return with_lines(state, await self._archive.lines_of(filed)) if filed else state


def masked_node(state: State, view: NodeView, workspace: str) -> NodeView:
    """Returns the view without names of functions and users of other workspaces."""
    return replace(view, gpus=tuple(_masked_gpu(state, gpu, workspace) for gpu in view.gpus))


def _masked_gpu(state: State, view: GpuView, workspace: str) -> GpuView:
    gang = state.gangs.get(view.gang_id)
    if gang is None or gang.owner.workspace == workspace:
        return view
    return replace(view, function="", user=OTHER_USER)


def is_call_id(text: str) -> bool:
    try:
        id_raw(text)
    except ValueError:
        return False
    return text.startswith("c-")


def require_call_id(text: str) -> None:
    """Refuses what is no call id: it becomes part of keys and blob names."""
    if not is_call_id(text):
        raise InvalidSpecError(f"{text[:80]!r} is no call id: use phalanx.core.ids.new_call_id()")


def _workspace() -> str:
    return caller().owner.workspace
