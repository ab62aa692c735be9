"""The run view, on a scripted call: no servers, no processes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from phalanx.cli.follow import RunView, follow
from phalanx.cli.render import Look, Screen
from phalanx.cli.run_state import cost_line, stage_of
from phalanx.core.errors import GetTimeoutError
from phalanx.core.messages import ErrorInfo
from phalanx.core.views import CallView, CostView, PhaseCost, RankView
from phalanx.logs import LogLine

QUEUED = CallView(
    call_id="c-1", function="app.train", state="queued", queue_position=3, reason="no node has 8 free GPUs"
)
STARTING = replace(
    QUEUED, state="assigned", phase="starting", world_size=8, ready_ranks=6, gang_id="g-1", placement="n0"
)
RUNNING = replace(
    STARTING, state="running", phase="busy", ready_ranks=8, step=40, ranks=(RankView(rank=0, node_id="a"),)
)
DONE = replace(RUNNING, state="succeeded", started_ms=1000, ended_ms=3500)


def piece(rank: int, text: str, *, node_id: str = "a") -> LogLine:
    return LogLine(rank=rank, node_id=node_id, stream="stdout", at_ms=0, text=text)


@dataclass
class Script:
    views: list[CallView]
    pieces: list[LogLine] = field(default_factory=list)
    call_id: str = "c-1"
    cancelled: bool = False

    def states(self) -> Iterator[CallView]:
        return iter(self.views)

    def logs(self) -> Iterator[LogLine]:
        return iter(self.pieces)

    def now(self) -> CallView:
        return self.views[-1]

    def cancel(self) -> None:
        self.cancelled = True


def shown(script: Script, look: Look | None = None, **options: object) -> tuple[CallView, str, str]:
    out, err = io.StringIO(), io.StringIO()
    view = follow(script, Screen(look or Look(), out=out, err=err), **options)  # pyright: ignore[reportArgumentType]
    return view, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (QUEUED, "queued (3rd, no node has 8 free GPUs)"),
        (replace(QUEUED, queue_position=0, reason=""), "queued"),
        (replace(STARTING, phase="reserved", ready_ranks=0), "placing 0/8 ranks"),
        (STARTING, "starting 6/8 ranks"),
        (RUNNING, "running step 40"),
        (DONE, "succeeded after 2.5 s"),
        (
            replace(DONE, state="failed", reason="rank 2 raised ValueError"),
            "failed after 2.5 s: rank 2 raised ValueError",
        ),
        (
            replace(
                DONE, state="failed", reason="", error=ErrorInfo(type_name="shop.SoldOut", message="no more\nof it")
            ),
            "failed after 2.5 s: SoldOut: no more",
        ),
        (replace(DONE, state="failed", reason="x" * 300), f"failed after 2.5 s: {'x' * 99}…"),
    ],
)
def test_every_stage_has_its_words(view: CallView, words: str) -> None:
    assert stage_of(view).words == words


def test_a_run_is_told_from_the_queue_to_its_end() -> None:
    view, _, err = shown(Script([QUEUED, STARTING, RUNNING, DONE]))
    assert view.state == "succeeded"
    for part in ("queued", "no node has 8 free GPUs", "placed on n0", "starting 6/8 ranks", "running", "succeeded"):
        assert part in err


def test_why_a_call_waits_is_told_to_its_last_bracket() -> None:
    why = "needs 8 GPUs on 1 node; best node vm has 2 free of 8 (6 held by f of admin)"
    _, _, err = shown(Script([replace(QUEUED, reason=why), DONE]))
    assert f"3rd, {why}\n" in err


def test_lines_of_ranks_go_to_standard_output_folded() -> None:
    pieces = [piece(r, "epoch 1") for r in range(4)] + [piece(2, "mine", node_id="b")]
    _, out, _ = shown(Script([RUNNING, DONE], pieces))
    assert out == "[r0-3] epoch 1\n[r2 n1] mine\n"


def test_one_rank_can_be_picked() -> None:
    _, out, _ = shown(Script([DONE], [piece(0, "zero"), piece(1, "one")]), ranks=(1,))
    assert out == "[r1 n0] one\n"


def test_json_is_a_stream_of_events() -> None:
    _, out, err = shown(Script([RUNNING, DONE], [piece(0, "x")]), Look(json=True))
    events = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert {e["event"] for e in events} == {"state", "log", "placement"}
    assert next(e for e in events if e["event"] == "log")["ranks"] == [0]


def test_waiting_ends_at_the_time_limit_and_the_call_goes_on() -> None:
    script = Script([RUNNING])
    with pytest.raises(GetTimeoutError, match="c-1"):
        shown(script, timeout_s=0.2)
    assert not script.cancelled


def test_the_cost_line_says_seconds_by_phase_and_money() -> None:
    phases = (
        PhaseCost(phase="start", gpu_ms=800, charged=False, money="0"),
        PhaseCost(phase="busy", gpu_ms=12_300, charged=True, money="0.0085"),
    )
    line = cost_line(CostView(phases=phases, gpu_ms=13_100, money="0.0085", price_per_gpu_hour="2.5"))
    assert line == "cost 0.008500 USD for 13.1 GPU-s at 2.50 USD/GPU-h (start 0.8 (free), busy 12.3)"


def test_the_end_is_told_behind_all_that_the_call_wrote() -> None:
    both = io.StringIO()
    failed = replace(DONE, state="failed", reason="ValueError: x")
    follow(Script([RUNNING, failed], [piece(0, "last words")]), Screen(Look(), out=both, err=both))
    text = both.getvalue()
    assert text.index("last words") < text.index("ValueError: x")
    assert text.count("ValueError: x") == 1


def test_a_line_that_is_rewritten_shows_in_the_status_until_it_ends() -> None:
    view = RunView(Screen(Look(), out=io.StringIO(), err=io.StringIO()))
    view.on_state(RUNNING)
    view.on_log(replace(piece(0, " 40%|####"), passing=True))
    assert view.status(RUNNING).startswith("[r0]  40%|####  (app.train: running step 40")
    view.on_log(piece(1, "another rank's line"))
    assert "40%" in view.status(RUNNING)
    view.on_log(piece(0, "100%|########"))
    assert view.status(RUNNING).startswith("app.train: running step 40")
