"""What `gpuctl run` and `gpuctl deploy` find in a file, and what they say of one that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from phalanx import config
from phalanx.cli.loading import apps_of, arguments, find_runnable, left_out, load_file
from phalanx.cli.problem import problem_of
from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.function import Function

Load = Callable[[str], ModuleType]
PLAIN = "import phalanx\n@phalanx.gpu_function(gpus=2)\ndef hello(): ...\n"
WITH_APP = PLAIN + "app = phalanx.App('shop')\n@app.function(gpus=1)\ndef sell(): ...\n"


MIXED = (
    WITH_APP + "def helper(): ...\ndef main(): ...\nclass Trainer: ...\nlimit = 0\n"
    "@phalanx.gpu_function(gpus=1)\ndef tell(): ...\n"
)


def takes_a_value(value: int) -> int:
    return value


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


def test_a_syntax_error_is_shown_with_file_line_and_caret(load: Load) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        load("x = 1\nif x:\n    y = (1 +* 2)\n")
    first, why, hint = problem_of(caught.value).lines()
    assert first.startswith("error[INVALID-SPEC]: ")
    assert "my_service.py, line 3: " in first
    line, caret = why.splitlines()
    assert line == "why: y = (1 +* 2)"
    assert line[caret.index("^")] == "*"
    assert hint == "try: mend the file"


@pytest.mark.parametrize(("text", "said"), [("import nothing_of_that_name\n", "line 1: import"), ("1 / 0\n", "1 / 0")])
def test_what_a_file_raises_at_import_is_said_with_its_place(load: Load, text: str, said: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"my_service.py cannot be imported: \w+Error: ") as caught:
        load(text)
    assert said in str(caught.value)


def test_a_file_that_is_not_python_says_what_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InvalidSpecError, match="is not a Python file") as caught:
        load_file(tmp_path / "notes.txt")
    assert problem_of(caught.value).hint == "give the path of a .py file"


def test_a_wrong_argument_leads_to_the_help_of_run() -> None:
    with pytest.raises(InvalidSpecError) as caught:
        arguments(takes_a_value, ["other=1"])
    assert problem_of(caught.value).hint == "gpuctl run --help"


def test_a_folder_that_was_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for ask in (config.resolve, lambda: load_file(Path("a.py"))):
        with pytest.raises(InvalidSpecError, match="the current folder has been deleted"):
            ask()


@pytest.mark.parametrize("name", ["hello", "sell"])
def test_a_gpu_function_is_found_by_its_name(load: Load, name: str) -> None:
    found = find_runnable(load(MIXED), name)
    assert isinstance(found, Function)
    assert found.definition.name == name


@pytest.mark.parametrize("name", ["", "main"])
def test_the_files_main_needs_no_decorator(load: Load, name: str) -> None:
    module = load(MIXED)
    assert find_runnable(module, name) is vars(module)["main"]


@pytest.mark.parametrize(
    ("name", "kind", "hint"),
    [
        ("helper", "a function without a decorator", "put @phalanx.gpu_function above it"),
        ("Trainer", "a class", "name one of "),
        ("limit", "a value of type int", "name one of "),
        ("phalanx", "a value of type module", "name one of "),
    ],
)
def test_what_is_no_gpu_function_does_not_run(load: Load, name: str, kind: str, hint: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        find_runnable(load(MIXED), name)
    problem = problem_of(caught.value)
    assert problem.what == f"{name} in my_service.py is not a GPU function"
    assert problem.why == f"it is {kind}; the file has hello, sell, tell"
    assert problem.hint.startswith(hint)


def test_a_name_that_the_file_lacks_is_answered_with_those_it_has_nearest_first(load: Load) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_runnable(load(MIXED), "tel")
    problem = problem_of(caught.value)
    assert problem.what == "my_service.py has no function 'tel'"
    assert problem.hint.startswith("name one of tell, ")
    assert {"hello", "sell"} <= set(problem.hint.replace(",", "").split())


def test_a_file_without_gpu_functions_is_told_how_to_make_one(load: Load) -> None:
    with pytest.raises(NotFoundError) as caught:
        find_runnable(load("x = 1\n"), "train")
    problem = problem_of(caught.value)
    assert problem.why == "the file has no GPU function"
    assert problem.hint == "put @phalanx.gpu_function above a function of the file"
