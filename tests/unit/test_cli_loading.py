"""What `gpuctl run` and `gpuctl deploy` find in a file, and what they say of one that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from phalanx.cli.loading import apps_of, left_out, load_file
from phalanx.core.errors import InvalidSpecError

Load = Callable[[str], ModuleType]
PLAIN = "import phalanx\n@phalanx.gpu_function(gpus=2)\ndef hello(): ...\n"
WITH_APP = PLAIN + "app = phalanx.App('shop')\n@app.function(gpus=1)\ndef sell(): ...\n"


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Loads a file ``my_service.py`` of that text; the interpreter forgets it afterwards."""
    path, known = list(sys.path), set(sys.modules)

    def write_and_load(text: str) -> ModuleType:
        file = tmp_path / "my_service.py"
        file.write_text(text)
        return load_file(file)

    yield write_and_load
    sys.path[:] = path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_functions_without_an_app_are_deployed_as_an_app_with_the_files_name(load: Load) -> None:
    (app,) = apps_of(load(PLAIN))
    assert app.name == "my_service"
    assert [function.name for function in app.functions] == ["hello"]


def test_functions_of_an_app_keep_theirs_and_the_others_are_named(load: Load) -> None:
    module = load(WITH_APP)
    apps = apps_of(module)
    assert [app.name for app in apps] == ["shop"]
    assert left_out(module, apps) == ["hello"]


def test_a_file_without_functions_has_nothing_to_deploy(load: Load) -> None:
    with pytest.raises(InvalidSpecError, match="my_service has nothing to deploy"):
        apps_of(load("import phalanx\n"))
