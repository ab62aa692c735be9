"""gpuctl policy: who gets how much of the cell."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any

import click

from phalanx.cli import text
from phalanx.cli.accounts import accounts_table
from phalanx.cli.options import Command, Session
from phalanx.cli.topology_file import text_of
from phalanx.core.errors import InvalidSpecError
from phalanx.policy import policy_from_json, policy_of

_FORM = """give TOML such as
  half_life = "24h"
  [workspaces.research]
  weight = 2
  gpus = 64
  limit = 128
  teams.nlp = { users = ["ada", "bob"] }"""


def show(session: Session) -> None:
    """Shows the policy, and what accounts hold."""
    screen = session.screen()
    client = session.client()
    given, warning = client.policy()
    if screen.look.json:
        screen.emit({"is_set": bool(given), "policy": json.loads(given or "{}"), "warning": warning})
        return
    policy = policy_from_json(given)
    if not given:
        screen.note("nobody has set a policy: all accounts weigh the same, with no guarantee and no limit")
    screen.data(
        f"past use is forgotten by half in {text.duration(round(policy.half_life_s * 1000))}; "
        f"preemptible gangs run for {text.duration(round(policy.min_runtime_s * 1000))} at least"
    )
    accounts_table(screen, client.queue(limit=1).accounts)
    if warning:
        screen.note(warning)


def set_policy(session: Session, file: str) -> None:
    """Reads a file and tells the cell."""
    screen = session.screen()
    data = _parsed(file, text_of(file))
    _, warning = session.client().set_policy(json.dumps(data, sort_keys=True, separators=(",", ":")))
    if screen.look.json:
        screen.emit({"is_set": True, "warning": warning})
        return
    screen.note(f"the policy of {file} is set")
    if warning:
        screen.note(warning)


def clear(session: Session) -> None:
    """Lets the cell forget its policy, and with it what was used before."""
    screen = session.screen()
    client = session.client()
    was_set = bool(client.policy()[0])
    client.set_policy("")
    if screen.look.json:
        screen.emit({"cleared": was_set})
    else:
        screen.note("the policy is forgotten" if was_set else "nothing to forget: nobody has set a policy")


def _parsed(file: str, written: str) -> Any:
    """Raises InvalidSpecError, the file's name before the reason."""
    read: Callable[[str], Any] = json.loads if file.endswith(".json") else tomllib.loads
    try:
        data = read(written)
        policy_of(data)
    except ValueError as e:
        ours = isinstance(e, InvalidSpecError)
        said = str(e) if ours else f"it does not parse: {e}"
        raise InvalidSpecError(f"{file}: {said}", hint=f"mend it in {file}" if ours else _FORM) from e
    return data


command = click.Group(
    "policy",
    help="Who gets how much of the cell: weights, guarantees and limits of workspaces, teams and users.",
    commands=[
        Command("show", callback=show, help="Show it, and what accounts hold.", examples=("gpuctl policy show",)),
        Command(
            "set",
            callback=set_policy,
            help="Read a policy from a TOML or JSON file and tell the cell. It replaces the one before.",
            params=[click.Argument(["file"])],
            examples=("gpuctl policy set policy.toml",),
        ),
        Command("clear", callback=clear, help="Forget the policy.", examples=("gpuctl policy clear",)),
    ],
)
