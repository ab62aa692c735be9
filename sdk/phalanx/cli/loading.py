"""Finds what to run or deploy in a Python file, which is imported under its own name, as a program would import it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.app import App
from phalanx.core.errors import InvalidSpecError, NotFoundError, PhalanxError
from phalanx.function import Function

Runnable = Function[..., Any] | Callable[..., Any]
MAIN = "main"
"""The one plain function that runs: it runs here."""
_DECORATOR = "@phalanx.gpu_function"


def load_file(path: Path) -> ModuleType:
    """Imports ``path`` by its name, with its folder on the path.

    Raises NotFoundError, or InvalidSpecError that says where a file cannot be read as Python or what it raised.
    """
    path = absolute(path)
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}", hint="give the path of a Python file")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _imported(path)
    except SyntaxError as e:
        raise _syntax_problem(path, e) from e
    except PhalanxError:
        raise
    except Exception as e:
        raise InvalidSpecError(
            f"{path.name} cannot be imported: {type(e).__name__}: {e}\n{_place_of(e)}", hint="repeat with -v"
        ) from e


def absolute(path: Path) -> Path:
    """Raises InvalidSpecError where the current folder is gone."""
    try:
        return path.absolute()
    except FileNotFoundError as e:
        raise InvalidSpecError("the current folder has been deleted", hint="cd to a folder that exists") from e


def _imported(path: Path) -> ModuleType:
    if path.stem.isidentifier() and (known := _importable(path)) is not None:
        return known
    name = "".join(c if c.isalnum() else "_" for c in path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidSpecError(f"{path} is not a Python file", hint="give the path of a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def find_runnable(module: ModuleType, name: str) -> Runnable:
    """Returns the named GPU function; without a name, or by that of ``main``, the file's ``main``, else its only one.

    Raises NotFoundError or InvalidSpecError naming what there is.
    """
    functions = functions_of(module)
    main = getattr(module, MAIN, None)
    if inspect.isfunction(main) and name in ("", MAIN):
        return main
    if name:
        return _named(module, name, functions)
    if len(functions) == 1:
        return next(iter(functions.values()))
    raise InvalidSpecError(
        f"which function of {module.__name__}: it has {_names(functions)}", hint="gpuctl run FILE::FUNCTION"
    )


def _named(module: ModuleType, name: str, functions: dict[str, Function[..., Any]]) -> Function[..., Any]:
    file = Path(module.__file__ or module.__name__).name
    has = f"the file has {_names(functions)}"
    if not hasattr(module, name):
        raise NotFoundError(f"{file} has no function {name!r}\n{has}", hint=_instead(name, functions))
    found = getattr(module, name)
    if isinstance(found, Function):
        return found
    plain = inspect.isfunction(found)
    kind = "a function without a decorator" if plain else "a class" if inspect.isclass(found) else _kind_of(found)
    hint = f"put {_DECORATOR} above it" if plain else _instead(name, functions)
    raise InvalidSpecError(f"{name} in {file} is not a GPU function\nit is {kind}; {has}", hint=hint)


def _kind_of(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _instead(name: str, functions: Iterable[str]) -> str:
    """The functions that could have been meant, the nearest first."""
    names = sorted(functions, key=lambda known: -SequenceMatcher(None, name, known).ratio())
    if not names:
        return f"put {_DECORATOR} above a function of the file"
    return f"name {names[0]} instead" if len(names) == 1 else f"name one of {', '.join(names)}"


def functions_of(module: ModuleType) -> dict[str, Function[..., Any]]:
    """Returns the GPU functions that the module itself defines, by the names they have there."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Function) and getattr(value.wrapped, "__module__", None) == module.__name__
    }


def apps_of(module: ModuleType) -> list[App]:
    """Returns the apps of the module; of one that makes none, an app of its own name with all its functions.

    Raises InvalidSpecError when there is nothing to deploy.
    """
    apps = list({id(value): value for value in vars(module).values() if isinstance(value, App)}.values())
    if apps:
        return apps
    functions = functions_of(module)
    if not functions:
        raise InvalidSpecError(
            f"{module.__name__} has nothing to deploy: no app and no GPU function",
            hint="decorate a function with @phalanx.gpu_function(gpus=…)",
        )
    app = App(module.__name__)
    for function in functions.values():
        app.add(function)
    return [app]


def left_out(module: ModuleType, apps: Sequence[App]) -> list[str]:
    """Returns the names of the module's functions that belong to none of ``apps``."""
    deployed = {id(function) for app in apps for function in app.functions}
    return [name for name, function in functions_of(module).items() if id(function) not in deployed]


def arguments(target: Runnable, pairs: Sequence[str]) -> dict[str, Any]:
    """Reads ``--arg name=value`` by the function's signature. Raises InvalidSpecError for one that does not fit."""
    usage = "gpuctl run --help"
    wrapped = target.wrapped if isinstance(target, Function) else target
    parameters = inspect.signature(wrapped).parameters if wrapped is not None else {}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    out: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidSpecError(f"--arg {pair!r}: write --arg name=value", hint=usage)
        if parameters and name not in parameters and not takes_any:
            takes = ", ".join(parameters) or "no arguments"
            raise InvalidSpecError(f"--arg {name}: the function takes {takes}", hint=usage)
        out[name] = _value(text, parameters[name].annotation if name in parameters else None)
    missing = [n for n, p in parameters.items() if _required(p) and n not in out]
    if missing:
        raise InvalidSpecError(f"the function needs {', '.join(missing)}", hint=f"--arg {missing[0]}=VALUE")
    return out


def _syntax_problem(path: Path, error: SyntaxError) -> InvalidSpecError:
    """The place, the line, and a caret below it, indented as far as the word before the line will be."""
    line = (error.text or "").rstrip("\n")
    shown = line.strip()
    column = max(0, (error.offset or 1) - 1 - (len(line) - len(line.lstrip())))
    caret = f"\n{' ' * (len('why: ') + column)}^" if shown else ""
    what = f"{error.filename or path}, line {error.lineno or 0}: {error.msg}"
    return InvalidSpecError(f"{what}\n{shown}{caret}", hint="mend the file")


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = next(frame for frame in reversed(frames) if not frame.filename.startswith("<frozen"))
    return f"{last.filename}, line {last.lineno}: {last.line or last.name}"


def _required(parameter: inspect.Parameter) -> bool:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variadic


def _value(text: str, annotation: Any) -> Any:
    """A parameter annotated ``str`` gets the text as it is; else a Python literal is read, else the text taken."""
    if annotation in (str, "str"):
        return text
    try:
        value = ast.literal_eval({"true": "True", "false": "False", "null": "None"}.get(text, text))
    except (ValueError, SyntaxError):
        return text
    return float(value) if annotation in (float, "float") and isinstance(value, int) else value


def _importable(path: Path) -> ModuleType | None:
    """Imports by name where that name really stands for this file, and not for an installed package."""
    found = importlib.util.find_spec(path.stem)
    if found is None or found.origin is None or Path(found.origin) != path:
        return None
    return importlib.import_module(path.stem)


def _names(functions: dict[str, Function[..., Any]]) -> str:
    return ", ".join(functions) or "no GPU function"
