"""Functions and apps: what is registered, and what a deployed name points to. Registering the same twice is once."""

from __future__ import annotations

from phalanx.core.errors import InvalidSpecError, VersionError
from phalanx.core.spec import FunctionSpec, check_name
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, queries, schemas
from phalanx_control.state.commands import DeployApp, RegisterFunction
from phalanx_control.state.model import App, Function, Owner


def register(draft: Draft, command: RegisterFunction) -> None:
    """Makes a function known. `queries.function_key` says under which id."""
    _register(draft, command.owner, command.spec)


def _register(draft: Draft, owner: Owner, spec: FunctionSpec) -> str:
    key = queries.function_key(draft.state, owner.workspace, spec)
    if key not in draft.state.functions:
        since, says = schemas.newest_of_spec(spec)
        if draft.now.schema < since:
            raise VersionError(
                f"{spec.name} {says}, which an older replica of this cell does not keep to",
                hint="upgrade all replicas first",
            )
        draft.add(events.FunctionRegistered(function=Function(id=key, owner=owner, spec=spec)))
    return key


def deploy(draft: Draft, command: DeployApp) -> None:
    """Points an app's names to these functions, all together. Unchanged content keeps the version.

    Raises InvalidSpecError for an app without functions, or with one name twice.
    """
    check_name("app name", command.app)
    _check_names(command)
    functions = {spec.name: _register(draft, command.owner, spec) for spec in command.specs}
    known = draft.state.apps.get(f"{command.owner.workspace}/{command.app}")
    if known is not None and known.functions == functions:
        return
    app = App(
        name=command.app,
        workspace=command.owner.workspace,
        version=known.version + 1 if known is not None else 1,
        functions=functions,
        deployed_wall_ms=draft.now.wall_ms,
    )
    draft.add(events.AppDeployed(app=app))


def _check_names(command: DeployApp) -> None:
    names = [spec.name for spec in command.specs]
    if not names:
        raise InvalidSpecError(
            f"app {command.app!r} has no functions: decorate at least one with @phalanx.gpu_function"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidSpecError(f"app {command.app!r} has two functions called {twice[0]!r}: give one of them name=…")
