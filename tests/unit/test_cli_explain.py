"""gpuctl explain's words for what ranks got: once for what is the same, and why not where it is not known."""

from __future__ import annotations

from dataclasses import replace

from phalanx.cli.commands.explain import of_call
from phalanx.cli.equipment_text import explanation
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause
from phalanx.core.topology.equipment import Equipment, RankEquipment, Variable, to_text
from phalanx.core.views import AttemptView, CallView, GangExplanation, GangView, MemberExplanation

HCA = Variable("NCCL_IB_HCA", "=mlx5_0,mlx5_1", "the nearest to each rank")
LEFT = Variable("NCCL_CROSS_NIC", "", "left to NCCL: rails are not known")


def rank(at: int, **facts: object) -> RankEquipment:
    bare = RankEquipment(
        gpus=(str(at),),
        numa=(at // 2,),
        cpus="0-7" if at < 2 else "8-15",
        cpus_why="near its GPU, shared by 2 ranks",
        sharers=2,
        memory_numa=at // 2,
        memory_why="the NUMA node of its processors",
        ports=(f"mlx5_{at}",),
        ports_why="behind the same PCIe switch",
    )
    return replace(bare, **facts)  # pyright: ignore[reportArgumentType]


EQUIPMENT = Equipment(ranks=tuple(rank(at) for at in range(4)), variables=(HCA, LEFT))


def member(node: int, equipment: Equipment | None, *, ranks: int = 4) -> MemberExplanation:
    text = to_text(equipment) if equipment is not None else ""
    return MemberExplanation(
        node_id=f"n{node}", first_rank=4 * node, ranks=ranks, gpus=("a", "b", "c", "d"), equipment=text
    )


def lines(*members: MemberExplanation, state: str = "ready", played: tuple[str, ...] = ()) -> list[str]:
    return list(explanation(GangExplanation(gang=GangView(gang_id="g-1", state=state), members=members), played))


def test_each_rank_has_a_line_and_each_reason_is_given_once() -> None:
    shown = lines(member(0, EQUIPMENT))
    assert shown[1] == "n0, ranks 0-3"
    assert shown[2].split() == ["RANK", "GPU", "NUMA", "PROCESSORS", "MEMORY", "PORTS"]
    assert shown[5].split() == ["2", "2", "1", "8-15", "NUMA", "1", "first", "mlx5_2"]
    assert shown.count("  processors: near its GPU, shared by 2 ranks") == 1
    assert shown[-5:] == [
        "variables of every rank",
        "  NCCL_IB_HCA==mlx5_0,mlx5_1",
        "      the nearest to each rank",
        "  NCCL_CROSS_NIC (not set)",
        "      left to NCCL: rails are not known",
    ]


def test_nodes_with_the_same_are_shown_once() -> None:
    shown = lines(*(member(node, EQUIPMENT) for node in range(3)))
    assert "  the same on n1, ranks 4-7, n2, ranks 8-11" in shown
    assert sum(line.startswith("  RANK") for line in shown) == 1
    assert "variables of every rank on all 3 nodes" in shown


def test_what_differs_between_nodes_is_shown_with_its_node() -> None:
    other = replace(EQUIPMENT, variables=(replace(HCA, value="=mlx5_9"), LEFT))
    shown = lines(member(0, EQUIPMENT), member(1, other))
    assert shown.count("  variables of its ranks") == 2
    assert "    NCCL_IB_HCA==mlx5_9" in shown
    assert sum("NCCL_CROSS_NIC" in line for line in shown) == 1


def test_a_reason_of_some_ranks_names_them() -> None:
    ranks = (*EQUIPMENT.ranks[:3], rank(3, ports=("mlx5_2",), ports_why="on the same NUMA node; not mlx5_3: down"))
    shown = lines(member(0, replace(EQUIPMENT, ranks=ranks)))
    assert "  ports of ranks 0-2: behind the same PCIe switch" in shown
    assert "  ports of rank 3: on the same NUMA node; not mlx5_3: down" in shown


def test_what_is_not_known_says_why() -> None:
    assert lines(member(0, None), state="preparing")[-1] == "n0, ranks 0-3: its ranks have not started yet"
    assert lines(member(0, None))[-1] == "n0, ranks 0-3: its agent has not said what its ranks got: upgrade it"
    ending = lines(member(0, None), state="draining")
    assert ending[-1].endswith("what its ranks got is not known: the gang may be ending before they were ready")
    ended = lines(member(0, None, ranks=0), state="released")
    assert ended[-1] == "n0: 4 GPUs; what its ranks got is forgotten with the gang"
    broken = replace(member(0, None), equipment="{")
    assert lines(broken)[-1] == "n0, ranks 0-3: its agent has not said what its ranks got: upgrade it"


def test_of_played_nodes_no_agent_is_asked_for_what_ranks_got() -> None:
    shown = lines(member(0, None), member(1, None), played=("n0", "n1"))
    assert shown == ["", "n0, ranks 0-3; n1, ranks 4-7: played: no ranks run there"]


def test_the_error_of_a_call_has_its_type_and_its_rank() -> None:
    error = ErrorInfo(type_name="ValueError", message="no data\nat all", rank=2, node_id="n1")
    failed = CallView(call_id="c-1", state="failed", function="app.train", reason="no data", error=error)
    assert of_call(failed) == [("call", "c-1  failed  app.train"), ("error", "rank 2 on n1: ValueError: no data")]
    lost = replace(failed, error=ErrorInfo(cause=Cause.INFRASTRUCTURE))
    assert of_call(lost)[1] == ("error", "infrastructure")
    assert of_call(replace(failed, state="cancelled", error=ErrorInfo(), reason="cancelled by ana"))[1][0] == "reason"


def test_a_call_tells_of_the_attempts_that_failed_before() -> None:
    lost = AttemptView(attempt=1, gang_id="g-1", busy_ms=2_500, credited=True, error="RankDiedError: rank 2 exited 9")
    call = CallView(call_id="c-1", function="f", state="queued", reason="retry 1 of 2 in 1.0 s", earlier=(lost,))
    assert ("try 1", "RankDiedError: rank 2 exited 9 (ran 2.5 s on g-1, credited)") in of_call(call)
