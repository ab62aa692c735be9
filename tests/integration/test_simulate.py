"""gpuctl simulate with the simulator as a program of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.cli.main import root
from phalanx.cli.options import Session
from phalanx.core.errors import InvalidSpecError

Output = pytest.CaptureFixture[str]


def gpuctl(*words: str) -> None:
    root.main(["simulate", *words], prog_name="gpuctl", standalone_mode=False, obj=Session())


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "jobs.jsonl"
    path.write_text("".join(json.dumps({"at": at, "duration": 60, "gpus": 8}) + "\n" for at in range(3)))
    return str(path)


def test_a_trace_is_played_and_more_nodes_take_the_waits_away(trace: str, tmp_path: Path, capsys: Output) -> None:
    gpuctl(trace, "--fleet", "1x8")
    assert "all  3     59 s       59 s  1m 58s  1m 58s" in capsys.readouterr().out
    svg = tmp_path / "more.svg"
    gpuctl(trace, "--fleet", "1x8", "--add", "2 x hgx_h100", "--json", "--svg", str(svg))
    found = json.loads(capsys.readouterr().out)
    assert found["waits"][-1]["max_s"] == 0
    assert found["fleet"] == {"name": "1x8 + 2 x hgx_h100", "nodes": 3, "gpus": 24}
    assert svg.read_text().startswith("<svg")


def test_the_same_question_gets_the_same_bytes(trace: str, capsys: Output) -> None:
    answers: set[str] = set()
    for _ in range(2):
        gpuctl(trace, "--fleet", "1x8", "--json")
        answers.add(capsys.readouterr().out)
    assert len(answers) == 1


def test_mistakes_in_files_are_told_as_such(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"at": 0, "gpus": "many"}\n')
    with pytest.raises(InvalidSpecError, match=r'bad.jsonl, line 1, key "gpus": .many. is no number'):
        gpuctl(str(bad), "--fleet", "1x8")
    with pytest.raises(InvalidSpecError, match=r"nowhere\.csv cannot be read: No such file"):
        gpuctl(str(tmp_path / "nowhere.csv"), "--fleet", "1x8")
