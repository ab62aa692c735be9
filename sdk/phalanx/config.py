"""Which cluster, and what opens it: flag > environment > project file > profile > the embedded cluster.

Every value says where it came from. A token or CA is only taken together with the address of its own layer, or from a
layer above it, so that a project file cannot send the profile's token to an address of its own choosing.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.core.errors import InvalidSpecError

KEYS = ("address", "token", "ca")
PROJECT_FILE = "phalanx.toml"
EMBEDDED = "embedded cluster"
_DEFAULT_PROFILE = "default"


@dataclass(frozen=True, slots=True)
class Value:
    """A setting and its origin, as "environment PHALANX_ADDRESS"."""

    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """``address`` is host:port; empty means the embedded cluster. ``ca`` is a path to a PEM file."""

    address: Value
    token: Value
    ca: Value

    @property
    def embedded(self) -> bool:
        return not self.address.text

    def items(self) -> tuple[tuple[str, Value], ...]:
        return tuple((key, getattr(self, key)) for key in KEYS)


@dataclass(frozen=True, slots=True)
class _Layer:
    values: dict[str, Value]


def resolve(
    flags: Mapping[str, str | None] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Returns the settings that hold in ``folder`` (the current one). Raises InvalidSpecError on a wrong file."""
    environ = os.environ if environ is None else environ
    layers = [_flags(flags or {}), _environment(environ)]
    project = _project_file(folder or _current_folder())
    file_values = _read(project) if project else {}
    if project:
        layers.append(_project(file_values, project))
    layers.append(_profile(environ, (flags or {}).get("profile") or "", str(file_values.get("profile", ""))))
    return _combine(layers)


def config_path(environ: Mapping[str, str] | None = None) -> Path:
    """Returns where profiles live: ``$XDG_CONFIG_HOME/phalanx/config.toml``."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(base) / "phalanx" / "config.toml"


def _combine(layers: list[_Layer]) -> Settings:
    none = Value("", EMBEDDED)
    at = next((i for i, layer in enumerate(layers) if "address" in layer.values), None)
    if at is None:
        return Settings(none, none, none)
    address = layers[at].values["address"]
    trusted = layers[: at + 1] + [x for x in layers[at + 1 :] if x.values.get("address", none).text == address.text]
    found = {key: next((x.values[key] for x in trusted if key in x.values), Value("", "not set")) for key in KEYS}
    return Settings(**found)


def _flags(flags: Mapping[str, str | None]) -> _Layer:
    return _Layer({key: Value(text, f"flag --{key}") for key in KEYS if (text := flags.get(key))})


def _environment(environ: Mapping[str, str]) -> _Layer:
    names = {key: f"PHALANX_{key.upper()}" for key in KEYS}
    return _Layer(
        {key: Value(text, f"environment {name}") for key, name in names.items() if (text := environ.get(name))}
    )


def _project(values: dict[str, Any], path: Path) -> _Layer:
    return _Layer(_texts(values, path, f"project file {path}"))


def _profile(environ: Mapping[str, str], flag: str, project: str) -> _Layer:
    path = config_path(environ)
    wanted = flag or environ.get("PHALANX_PROFILE") or project
    if not path.is_file():
        if wanted:
            raise InvalidSpecError(f"profile {wanted!r} is asked for and there is no {path}", hint="make that file")
        return _Layer({})
    values = _read(path)
    profiles = values.get("profiles", {})
    name = wanted or str(values.get("profile", "")) or _DEFAULT_PROFILE
    if not isinstance(profiles, dict) or (name not in profiles and wanted):
        raise InvalidSpecError(f"{path} has no profile {name!r}: add a [profiles.{name}] section")
    return _Layer(_texts(profiles.get(name, {}), path, f"profile {name!r} in {path}"))


def _texts(values: dict[str, Any], path: Path, origin: str) -> dict[str, Value]:
    out: dict[str, Value] = {}
    for key in KEYS:
        text = values.get(key)
        if text is None:
            continue
        if not isinstance(text, str):
            raise InvalidSpecError(f"{key} = {text!r} in {path}: write it as text in quotes")
        out[key] = Value(str(path.parent / Path(text).expanduser()) if key == "ca" else text, origin)
    return out


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as e:
        raise InvalidSpecError("the current folder has been deleted", hint="cd to a folder that exists") from e


def _project_file(folder: Path) -> Path | None:
    for place in (folder, *folder.parents):
        path = place / PROJECT_FILE
        if path.is_file():
            return path
        if (place / ".git").exists():
            return None
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise InvalidSpecError(f"{path} cannot be read: {e}") from e
