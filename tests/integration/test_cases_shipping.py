"""Functions, names and modules: what the user wrote is what runs, or the error says what to do before anything runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster

HEAD = """
import phalanx
gpu = phalanx.gpu_function(gpus=0, scaledown_window=2)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with judged_cluster(tmp_path_factory.mktemp("cluster"), agents=1) as running:
        yield running


class Project:
    """A folder with a user's files, and the cluster that they use."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self._env = cluster.env()

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))

    def run(self, *arguments: str, stdin: str = "", cwd: str = "") -> str:
        """Runs Python in the project and returns what it printed, errors too."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder / cwd,
            env=self._env,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
            check=False,
        )
        return done.stdout

    def script(self, text: str) -> str:
        self.write({"main.py": HEAD + dedent(text)})
        return self.run("main.py")


@pytest.fixture
def project(tmp_path: Path, cluster: Cluster) -> Project:
    return Project(tmp_path, cluster)


def test_two_functions_of_one_name_stay_two(project: Project) -> None:
    project.write({f"{name}.py": f"def scale(x):\n    return ('{name}', x)\n" for name in ("one", "two")})
    said = project.script("""
        import one, two
        def make(factor):
            @gpu
            def scale(x):
                return factor * x
            return scale
        print(make(2).remote(10), make(3).remote(10), gpu(one.scale).remote(1), gpu(two.scale).remote(2))
    """)
    assert said == "20 30 ('one', 1) ('two', 2)\n"


def test_wrappers_without_wraps_do_not_make_functions_one(project: Project) -> None:
    said = project.script("""
        def twice(f):
            def inner(x):
                return f(f(x))
            return inner
        @gpu
        @twice
        def plus(x): return x + 1
        @gpu
        @twice
        def times(x): return x * 3
        print(plus.remote(1), times.remote(1))
    """)
    assert said == "3 9\n"


def test_a_cell_that_is_run_again_runs_the_new_code(project: Project) -> None:
    said = project.script("""
        cells = ["@gpu\\ndef f():\\n    return 'old'\\n", "@gpu\\ndef f():\\n    return 'new'\\n"]
        space = {"gpu": gpu, "__name__": "__main__"}
        for cell in cells:
            exec(compile(cell, "<ipython-input>", "exec"), space)
            print(space["f"].remote())
    """)
    assert said == "old\nnew\n"


def test_the_projects_own_modules_travel(project: Project) -> None:
    project.write({"pkg/__init__.py": "", "pkg/deep.py": "def two():\n    return 2\n"})
    project.write({"pkg/util.py": "from pkg.deep import two\ndef helper():\n    return two() + 1\n"})
    project.write({"late.py": "def late():\n    return 'late'\n"})
    said = project.script("""
        from pkg.util import helper
        @gpu
        def f():
            import late
            return helper(), late.late()
        print(f.remote())
    """)
    assert said == "(3, 'late')\n"


def test_a_decorated_function_of_a_package_is_called_from_elsewhere(project: Project) -> None:
    project.write({"pkg/__init__.py": "", "pkg/work.py": HEAD + "@gpu\ndef f(x):\n    return x, __name__\n"})
    assert project.script("from pkg.work import f\nprint(f.remote(4))") == "(4, 'pkg.work')\n"


def test_a_module_that_the_worker_lacks_is_named_with_the_fix(project: Project) -> None:
    said = project.script("""
        @gpu
        def f():
            import not_there_at_all
        f.remote()
    """)
    assert "ModuleNotFoundError: No module named 'not_there_at_all'" in said
    vanished = project.script("""
        import sys, types
        module = types.ModuleType("made_here")
        exec("def g():\\n    return 5", module.__dict__)
        sys.modules["made_here"] = module
        from made_here import g
        @gpu
        def f():
            return g()
        print(f.remote())
    """)
    assert vanished == "5\n" or "made_here" in vanished


CALLABLES = """
    import functools, operator
    @functools.cache
    def cached(x): return x + 1
    @functools.lru_cache(maxsize=3)
    def lru(x): return x + 2
    @functools.singledispatch
    def single(x): return x + 3
    class Adder:
        def __init__(self, n): self.n = n
        def __call__(self, x): return x + self.n
        def method(self, x): return x + self.n
    space = {}
    exec("def made(x): return x + 9", space)
    whole = {
        "cached": cached, "lru": lru, "single": single, "partial": functools.partial(operator.add, 4),
        "bound": Adder(5).method, "object": Adder(6), "lambda": lambda x: x + 7, "exec": space["made"], "builtin": abs,
    }
    for name, f in whole.items():
        try:
            print(name, gpu(f).remote(1))
        except phalanx.PhalanxError as e:
            print(name, "refused:", e)
"""


def test_every_kind_of_callable_works_or_is_refused_by_name(project: Project) -> None:
    said = dict(line.split(" ", 1) for line in project.script(CALLABLES).splitlines())
    works = {"cached": 2, "lru": 3, "single": 4, "partial": 5, "bound": 6, "object": 7, "lambda": 8, "exec": 10}
    assert said == {**{name: str(value) for name, value in works.items()}, "builtin": "1"}


def test_a_function_is_not_decorated_twice(project: Project) -> None:
    assert "is decorated twice" in project.script("gpu(gpu(lambda: 1))")


def test_functions_typed_into_a_console_run(project: Project) -> None:
    typed = HEAD + "@gpu\ndef f(x):\n    return x * 2\n\nprint('got', f.remote(21))\n"
    assert "got 42" in project.run("-i", stdin=typed)
    assert "got 42" in project.run("-c", "import code; code.interact()", stdin=typed)


def test_a_program_started_as_a_module_runs(project: Project) -> None:
    main = HEAD + "from app.parts import SIZE\n@gpu\ndef f():\n    return SIZE\nprint(f.remote())\n"
    project.write({"app/__init__.py": "", "app/parts.py": "SIZE = 3\n", "app/__main__.py": main})
    assert project.run("-m", "app") == "3\n"


def test_functions_call_each_other_by_their_handles(project: Project) -> None:
    said = project.script("""
        import os
        reach = phalanx.env(vars={n: os.environ[n] for n in ("PHALANX_ADDRESS", "PHALANX_TOKEN", "PHALANX_CA")})
        @phalanx.gpu_function(gpus=0, scaledown_window=2)
        def inner(x): return x + 1
        @phalanx.gpu_function(gpus=0, scaledown_window=2, env=reach)
        def outer(x): return inner.remote(x) * 10
        @phalanx.gpu_function(gpus=0, scaledown_window=2)
        def plain(x): return inner(x)
        handle = inner
        captured = phalanx.gpu_function(gpus=0, scaledown_window=2, env=reach)(lambda x: handle.remote(x))
        print(outer.remote(1), captured.remote(5), inner.local(3))
    """)
    assert said == "20 6 4\n"


def test_wrong_arguments_fail_here_and_cost_nothing(project: Project, cluster: Cluster) -> None:
    before = len(cluster.connect().list_calls(ended_too=True))
    said = project.script("""
        @gpu
        def f(a, b=[]): b.append(a); return b
        for call in (lambda: f.remote(), lambda: f.remote(1, 2, 3), lambda: f.remote(1, c=2)):
            try: call()
            except TypeError as e: print("TypeError", e)
    """)
    assert said.count("TypeError f(a, b=[])") == 3
    assert len(cluster.connect().list_calls(ended_too=True)) == before


def test_the_callers_objects_stay_as_they_are(project: Project) -> None:
    said = project.script("""
        @gpu
        def f(items, extra=[]):
            items.append(9); extra.append(1)
            return items, extra
        mine = [1]
        print(f.remote(mine), mine, f.remote([]))
    """)
    assert said.splitlines()[0].startswith("([1, 9], [1]) [1]")


def test_another_python_version_is_named_before_anything_is_loaded(project: Project) -> None:
    said = project.script("""
        import phalanx.loader
        phalanx.loader.python_version = lambda: "3.7"
        phalanx.definition.python_version = lambda: "3.7"
        @gpu
        def f(): return 1
        f.remote()
    """)
    assert "was sent by Python 3.7 and this worker runs 3." in said
