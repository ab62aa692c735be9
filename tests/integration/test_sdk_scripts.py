"""User programs as they are written: scripts, helper modules, notebooks' cells, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.client import Client
from tests.support.cluster import Cluster
from tests.support.wait import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), gpus_per_agent=4) as running:
        yield running


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def run(cluster: Cluster, *words: str, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=cluster.env(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


MAIN = """
    import phalanx
    from helpers.maths import Odd, half

    class Mine(Exception):
        pass

    @phalanx.gpu_function(gpus=0, scaledown_window=5)
    def f(x):
        if x < 0:
            raise Mine(x)
        return half(x)

    @phalanx.gpu_function(gpus=0, scaledown_window=5)
    def lazy():
        import later
        return later.value()

    @phalanx.gpu_function(gpus=0, scaledown_window=5)
    def again(n):
        return again.spec is None, again.name

    if __name__ == "__main__":
        print(f.remote(4))
        for x, error in ((3, Odd), (-1, Mine)):
            try:
                f.remote(x)
            except error as e:
                print(error.__name__, type(e) is error)
        print(lazy.remote())
        print(again.remote(1))
"""


def test_a_script_ships_its_helpers_and_catches_its_own_exceptions(cluster: Cluster, tmp_path: Path) -> None:
    write(
        tmp_path,
        main=MAIN,
        later="def value(): return 'later'",
        helpers____init__="",
        helpers__maths="""
            class Odd(ValueError):
                pass

            def half(x):
                if x % 2:
                    raise Odd(x)
                return x // 2
        """,
    )
    expected = "2\nOdd True\nMine True\nlater\n(True, 'again')\n"
    assert run(cluster, "main.py", cwd=tmp_path) == expected
    assert run(cluster, "-m", "main", cwd=tmp_path) == expected


def test_a_module_that_the_worker_lacks_is_named_with_the_fix(cluster: Cluster, tmp_path: Path) -> None:
    write(
        tmp_path,
        main="""
            import sys, types
            import phalanx
            ghost = types.ModuleType("ghost")
            exec("class Thing: pass", ghost.__dict__)
            ghost.Thing.__module__ = "ghost"
            sys.modules["ghost"] = ghost
            Thing = ghost.Thing

            @phalanx.gpu_function(gpus=0, scaledown_window=1)
            def f():
                return Thing()

            f.remote()
        """,
    )
    said = run(cluster, "main.py", cwd=tmp_path, code=1)
    assert "module 'ghost'" in said
    assert "env(pip=[...])" in said


def test_a_cell_that_defines_a_helper_anew_runs_the_new_code(cluster: Cluster, tmp_path: Path) -> None:
    cells = """
        import phalanx
        def helper(): return "old"
        @phalanx.gpu_function(gpus=0, scaledown_window=1)
        def f(): return helper()
        print(f.remote())
        def helper(): return "new"
        print(f.remote())
    """
    assert run(cluster, "-c", textwrap.dedent(cells), cwd=tmp_path) == "old\nnew\n"


def test_the_same_script_again_finds_the_warm_gang(cluster: Cluster, tmp_path: Path) -> None:
    write(
        tmp_path,
        main="""
            import sys, time
            from dataclasses import dataclass
            import phalanx

            @dataclass
            class Answer:
                first_call: str

            @phalanx.gpu_function(gpus=0, scaledown_window=60)
            def first_call():
                return Answer(vars(sys).setdefault("first_call", str(time.monotonic_ns())))

            print(first_call.remote().first_call)
        """,
    )
    assert run(cluster, "main.py", cwd=tmp_path) == run(cluster, "main.py", cwd=tmp_path)


def test_a_call_of_another_function_inside_a_gang_without_an_address_says_so(cluster: Cluster, tmp_path: Path) -> None:
    write(
        tmp_path,
        main="""
            import phalanx

            @phalanx.gpu_function(gpus=0, scaledown_window=1)
            def again(n):
                return 1 if n == 0 else again.remote(n - 1)

            try:
                again.remote(1)
            except phalanx.ConnectionFailedError as e:
                print(e.hint)
        """,
    )
    assert "PHALANX_ADDRESS" in run(cluster, "main.py", cwd=tmp_path)


def test_a_file_that_calls_while_it_is_imported_is_refused_and_starts_no_further_gang(
    cluster: Cluster, tmp_path: Path
) -> None:
    write(
        tmp_path,
        unguarded="""
            import phalanx

            @phalanx.gpu_function(scaledown_window=1)
            def f(x):
                return x

            print(f.remote(1))
        """,
    )
    stderr = run(cluster, "-c", "import unguarded", cwd=tmp_path, code=1)
    assert "unguarded.py, line 8, makes a call while the file is imported" in stderr
    assert 'if __name__ == "__main__"' in stderr
    client = cluster.connect()
    assert len([c for c in client.list_calls(ended_too=True) if "unguarded" in c.function]) == 1
    assert not [c for c in client.list_calls() if "unguarded" in c.function]


def test_a_traceback_names_the_users_files_and_shows_their_lines(cluster: Cluster, tmp_path: Path) -> None:
    write(
        tmp_path,
        helper="""
            def halve(x):
                return x / 0
        """,
        main="""
            import phalanx
            from helper import halve

            @phalanx.gpu_function(gpus=0, scaledown_window=1)
            def f(x):
                return halve(x)

            f.remote(1)
        """,
    )
    _, _, remote = run(cluster, "main.py", cwd=tmp_path, code=1).partition("remote traceback:")
    assert 'File "main.py", line 7, in f\n    return halve(x)' in remote
    assert 'File "helper.py", line 3, in halve\n    return x / 0' in remote


def test_a_function_calls_itself_where_its_gang_knows_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    write(
        tmp_path,
        main="""
            import os
            import phalanx

            known = {k: os.environ[k] for k in ("PHALANX_ADDRESS", "PHALANX_TOKEN", "PHALANX_CA")}

            @phalanx.gpu_function(gpus=0, scaledown_window=1, env=phalanx.env(vars=known))
            def factorial(n):
                return 1 if n == 0 else n * factorial.spawn(n - 1).get(60)

            print(factorial.remote(2))
        """,
    )
    assert run(cluster, "main.py", cwd=tmp_path) == "2\n"


def test_importing_is_quick_to_write_and_imports_no_heavy_package(cluster: Cluster, tmp_path: Path) -> None:
    code = """
        import sys, phalanx
        @phalanx.gpu_function(gpus=4)
        def f(): ...
        heavy = {"grpc", "torch", "numpy", "redis", "kubernetes", "google.protobuf", "asyncio", "ssl"}
        print(sorted(heavy & set(sys.modules)))
    """
    assert run(cluster, "-c", textwrap.dedent(code), cwd=tmp_path) == "[]\n"


def test_a_forked_child_makes_its_own_connection(cluster: Cluster, tmp_path: Path) -> None:
    write(
        tmp_path,
        main="""
            import multiprocessing, phalanx

            @phalanx.gpu_function(gpus=0, scaledown_window=2)
            def f(x): return x

            def child(): print("child", f.remote(2), flush=True)

            if __name__ == "__main__":
                print("parent", f.remote(1), flush=True)
                process = multiprocessing.get_context("spawn").Process(target=child)
                process.start()
                process.join()
                print("parent", f.remote(3), process.exitcode)
        """,
    )
    assert run(cluster, "main.py", cwd=tmp_path) == "parent 1\nchild 2\nparent 3 0\n"


def test_ctrl_c_while_waiting_is_a_keyboard_interrupt(cluster: Cluster, tmp_path: Path) -> None:
    write(
        tmp_path,
        main="""
            import signal, sys, threading, phalanx
            from pathlib import Path

            @phalanx.gpu_function(gpus=0, scaledown_window=1)
            def f():
                threading.Event().wait(8)

            threading.Timer(3, lambda: signal.raise_signal(signal.SIGINT)).start()
            try:
                f.remote()
            except KeyboardInterrupt:
                print("interrupted")
        """,
    )
    assert run(cluster, "main.py", cwd=tmp_path) == "interrupted\n"


def test_a_large_bundle_is_refused_with_the_largest_files(cluster: Cluster, tmp_path: Path) -> None:
    write(tmp_path, main="import phalanx\nphalanx.gpu_function(gpus=0)(lambda: 1).remote()")
    (tmp_path / "huge.py").write_text("x = '" + "y" * (70 << 20) + "'")
    said = run(cluster, "main.py", cwd=tmp_path, code=1)
    assert "more than 64 MiB" in said
    assert "huge.py (73.4 MB)" in said


def test_all_is_quiet_afterwards(cluster: Cluster) -> None:
    client = cluster.connect()
    wait_until(lambda: not client.list_calls(), "no call is left", 60)


INTERRUPTED = """
    import sys, time
    import phalanx

    @phalanx.gpu_function(gpus=0, grace=1, scaledown_window=120)
    def held(path):
        if path:
            open(path, "w").close()
            time.sleep(600)

    if sys.argv[2] == "direct":
        held.remote("")
    held.remote(sys.argv[1])
"""


@pytest.mark.parametrize("way", ["direct", "durable"])
def test_ctrl_c_ends_the_call_that_the_script_waits_for(cluster: Cluster, tmp_path: Path, way: str) -> None:
    write(tmp_path, interrupted=INTERRUPTED)
    client = cluster.connect()
    started = tmp_path / "started"
    words = [sys.executable, "interrupted.py", str(started), way]
    script = subprocess.Popen(words, cwd=tmp_path, env=cluster.env(), stderr=subprocess.PIPE, text=True)
    wait_until(started.exists, "the function runs", 60)
    assert gangs_of(client, "held")
    script.send_signal(signal.SIGINT)
    _, said = script.communicate(timeout=20)
    assert script.returncode == -signal.SIGINT
    call_id = said.partition("phalanx: cancelling call ")[2].split()[0]
    assert f"call {call_id}: its cancellation is accepted" in said.rpartition("KeyboardInterrupt")[2]
    wait_until(lambda: not gangs_of(client, "held"), "its ranks have ended", 20)


def gangs_of(client: Client, name: str) -> list[str]:
    return [g.gang_id for g in client.list_gangs() if g.function.endswith(name)]


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)", "raise ValueError"])
def test_a_program_ends_though_it_still_holds_a_stream(cluster: Cluster, tmp_path: Path, end: str) -> None:
    script = f"""
        import phalanx

        @phalanx.gpu_function(gpus=0, scaledown_window=5)
        def items():
            yield from range(1_000_000)

        if __name__ == "__main__":
            stream = items.stream()
            next(stream)
            print("left", flush=True)
            {end}
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env=cluster.env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "left\n"
    wait_until(lambda: not [c for c in cluster.connect().list_calls() if c.state == "running"], "it is left", 20)
