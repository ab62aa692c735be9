"""Facts of this boot on disk: nobody's change is lost, and many changes cost one write."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx_agent.discovery.boot_file import BootFile, Form

Numbers = tuple[int, ...]


def _read(data: dict[str, Any]) -> Numbers:
    return tuple(int(number) for number in data["numbers"])


def _write(numbers: Numbers) -> dict[str, Any]:
    return {"numbers": list(numbers)}


NOTHING: Numbers = ()
FORM = Form(what="numbers", empty=NOTHING, read=_read, write=_write)


def book(path: Path, boot: str = "b1", later: Callable[[], None] | None = None) -> BootFile[Numbers]:
    return BootFile(path, FORM, boot_id=boot, later=later)


def add(file: BootFile[Numbers], number: int) -> None:
    file.change(lambda numbers: (*numbers, number))


def on_disk(path: Path) -> Numbers:
    return tuple(json.loads(path.read_text())["numbers"])


def test_what_two_programs_change_is_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    one, other = book(path), book(path)
    add(one, 1)
    add(other, 2)
    add(one, 3)
    assert other.refresh()
    assert on_disk(path) == one.facts == other.facts == (1, 2, 3)
    assert not other.refresh()


def test_many_changes_cost_one_write_and_keep_what_another_wrote_before_it(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    asked: list[int] = []
    lazy = book(path, later=lambda: asked.append(1))
    for number in range(1000):
        add(lazy, number)
    assert (len(asked), len(lazy.facts), path.exists()) == (1000, 1000, False)
    add(book(path), -1)
    lazy.refresh()
    assert lazy.facts == (-1, *range(1000)), "what is not saved yet stands on top of what was read"
    lazy.save()
    inode = path.stat().st_ino
    lazy.save()
    assert (on_disk(path), path.stat().st_ino) == (lazy.facts, inode), "nothing to save: nothing is written"


def test_what_changes_while_it_is_saved_is_saved_next(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    file: list[BootFile[Numbers]] = []

    def write(numbers: Numbers) -> dict[str, Any]:
        if len(numbers) == 1:
            add(file[0], 2)
        return _write(numbers)

    form = Form(what="numbers", empty=NOTHING, read=_read, write=write)
    file.append(BootFile(path, form, boot_id="b1", later=lambda: None))
    add(file[0], 1)
    file[0].save()
    assert (on_disk(path), file[0].facts) == ((1,), (1, 2))
    file[0].save()
    assert on_disk(path) == (1, 2)


def test_a_look_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def write(numbers: Numbers) -> dict[str, Any]:
        begun.set()
        go_on.wait(10)
        return _write(numbers)

    form = Form(what="numbers", empty=NOTHING, read=_read, write=write)
    file = BootFile(tmp_path / "facts.json", form, boot_id="b1", later=lambda: None)
    add(file, 1)
    saver = threading.Thread(target=file.save)
    saver.start()
    assert begun.wait(10)
    add(file, 2)
    assert not file.refresh()
    assert file.facts == (1, 2)
    go_on.set()
    saver.join(10)


def test_a_change_that_could_not_be_saved_is_saved_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "later" / "facts.json"
    file = book(path)
    add(file, 1)
    assert file.facts == (1,)
    path.parent.mkdir()
    add(file, 2)
    assert on_disk(path) == (1, 2)


def test_another_boot_begins_with_nothing(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    add(book(path), 1)
    assert book(path).facts == (1,)
    assert book(path, "b2").facts == ()
