"""A named set of functions that is deployed together: ``app = phalanx.App("search")``, ``@app.function(gpus=2)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phalanx.core.errors import InvalidSpecError
from phalanx.core.spec import FunctionSpec, check_name
from phalanx.definition import Decorated
from phalanx.function import Function, gpu_function

if TYPE_CHECKING:
    from phalanx.core.views import FunctionView


class App:
    """Collects functions; `gpuctl deploy FILE` deploys the apps that it finds in a file."""

    def __init__(self, name: str) -> None:
        check_name("app name", name)
        self.name = name
        self._functions: dict[str, Function[..., Any]] = {}
        self.function = gpu_function if TYPE_CHECKING else self._function
        """Like `gpu_function`, and enters the function into this app."""

    @property
    def functions(self) -> tuple[Function[..., Any], ...]:
        return tuple(self._functions.values())

    def add(self, function: Function[..., Any]) -> None:
        """Enters ``function``; one of the same name that was defined anew replaces it, another one is refused."""
        old = self._functions.get(function.name)
        if old is not None and _place(old) != _place(function):
            raise InvalidSpecError(
                f"app {self.name!r} has two functions called {function.name!r}: give one of them name='...'"
            )
        self._functions[function.name] = function

    def deploy(self) -> tuple[int, tuple[FunctionView, ...]]:
        """Uploads the code and deploys all functions or none. Returns the new version and what it holds."""
        from phalanx.connection import connect

        if not self._functions:
            raise InvalidSpecError(f"app {self.name!r} has no functions: decorate some with @app.function(...)")
        specs: list[FunctionSpec] = []
        blobs: dict[str, bytes] = {}
        for function in self._functions.values():
            assert isinstance(function.definition, Decorated)
            spec, needed = function.definition.code()
            specs.append(replace(spec, app=self.name))
            blobs |= needed
        client = connect()
        client.put_missing(blobs)
        return client.deploy(self.name, specs)

    def _function(self, func: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        if "app" in options:
            raise InvalidSpecError("app=...: leave it out, the function belongs to the app whose decorator this is")
        decorator = gpu_function(app=self, **options)
        return decorator if func is None else decorator(func)

    def __repr__(self) -> str:
        return f"<phalanx.App {self.name}: {', '.join(self._functions) or 'no functions'}>"


def _place(function: Function[..., Any]) -> tuple[str, str]:
    wrapped = function.wrapped
    return getattr(wrapped, "__module__", "") or "", getattr(wrapped, "__qualname__", "")
