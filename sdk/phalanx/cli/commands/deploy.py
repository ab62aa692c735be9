"""gpuctl deploy: deploys the functions of a file, all at once or none."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.options import Command, Session


def deploy(session: Session, file: str) -> None:
    """Deploys every app of the file; each gets one new version, atomically. Without an app the file itself is one."""
    from phalanx.cli.loading import apps_of, left_out, load_file
    from phalanx.connection import use

    screen = session.screen()
    module = load_file(Path(file))
    apps = apps_of(module)
    for name in left_out(module, apps):
        screen.note(f"{name} is not deployed: it belongs to no app of this file")
    use(session.target(start=True).connection)
    for app in apps:
        version, functions = app.deploy()
        if screen.look.json:
            screen.emit({"app": app.name, "version": version, "functions": functions})
            continue
        screen.note(f"deployed {app.name} version {version}")
        for function in functions:
            screen.data(f"{function.app}/{function.name}@{function.version}")
        screen.note(f'use phalanx.Function.from_name("{app.name}", "{functions[0].name}")')


command = Command(
    "deploy",
    callback=deploy,
    help="Deploy the functions of the apps in a file: all get the new version at once, or none does. The functions of "
    "a file that makes no app are deployed as an app with the file's name.",
    params=[click.Argument(["file"], type=click.Path(exists=True, dir_okay=False))],
    examples=("gpuctl deploy service.py", "gpuctl deploy service.py --json"),
)
