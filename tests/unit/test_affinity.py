"""Which processors and memory ranks get: near their GPUs, fairly shared, never what the machine does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.topology.affinity import Binding, Host, bindings, cpus_in
from phalanx.core.topology.importers.reading import number_list
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.presets import preset

HOST = Host(allowed=frozenset(range(64)))


def node(*, cpus: tuple[str | None, str | None] = ("0-15,32-47", "16-31,48-63")) -> NodeTopology:
    """Eight GPUs on two sockets."""
    bare = preset("hgx_h100")
    return replace(bare, gpus=tuple(replace(gpu, cpus=cpus[at // 4]) for at, gpu in enumerate(bare.gpus)))


def bound(
    gpus: tuple[int, ...] | list[tuple[int, ...]],
    *,
    on: NodeTopology | None = None,
    host: Host = HOST,
    cpus: float = 0,
    share: float = 1,
) -> tuple[Binding, ...]:
    ranks = [each if isinstance(each, tuple) else (each,) for each in gpus]
    return bindings(on or node(), ranks, host, cpus=cpus, share=share, gang_id="g-1")


def test_a_rank_is_bound_to_the_processors_near_its_gpu_and_prefers_their_memory() -> None:
    near, far = bound((0, 7))
    assert number_list(list(near.cpus)) == "0-15,32-47"
    assert number_list(list(far.cpus)) == "16-31,48-63"
    assert (near.numa, far.numa) == (0, 1)
    assert near.why == "near its GPU"


def test_ranks_near_the_same_processors_share_them_and_say_so() -> None:
    found = bound((0, 1, 4))
    assert [each.sharers for each in found] == [2, 2, 1]
    assert found[0].why == "near its GPU, shared by 2 ranks"


def test_asked_processors_are_split_between_the_ranks_of_a_numa_node() -> None:
    found = bound((0, 1, 2, 3), cpus=8)
    taken = [set(each.cpus) for each in found]
    assert [len(each) for each in taken] == [8, 8, 8, 8]
    assert set.union(*taken) == set(range(16)) | set(range(32, 48))
    assert all(each.sharers == 1 for each in found)
    assert found[0].why == "8 of the 32 near its GPU, as cpus=8 asks for"


def test_asking_for_more_than_is_near_gets_all_that_is_near_and_says_so() -> None:
    (found,) = bound((0,), cpus=40)
    assert len(found.cpus) == 32
    assert found.why == "32 of the 32 near its GPU, fewer than cpus=40 asks for"


def test_only_processors_of_the_cpuset_are_used() -> None:
    near, far = bound((0, 7), host=Host(allowed=frozenset({3, 33})))
    assert near.cpus == (3, 33)
    assert far.cpus == ()
    assert far.why == "not bound: none of the processors near its GPU (16-31,48-63) is in the agent's cpuset"
    assert far.numa is None


def test_a_simulated_node_binds_nothing_that_this_machine_does_not_have() -> None:
    small = Host(allowed=frozenset({0, 1}), simulated=True)
    assert [each.cpus for each in bound((0, 7), host=small)] == [(), ()]
    assert "this machine does not have processors 0-15,32-47" in bound((0,), host=small)[0].why
    assert [each.cpus for each in bound((0, 7), on=node(cpus=("0", "1")), host=small)] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("on", "share", "reason"),
    [
        (node(), 0.5, "not bound: it holds a part of a GPU, and others run beside it"),
        (node(cpus=(None, None)), 1, "not bound: nothing says which processors are near its GPU"),
        (node(cpus=("x", "y")), 1, "not bound: nothing says which processors are near its GPU"),
        (
            replace(node(), gpus=tuple(replace(gpu, numa=None) for gpu in node().gpus)),
            1,
            "not bound: the NUMA node of its GPU is not known",
        ),
    ],
)
def test_what_is_not_known_binds_nothing_and_says_why(on: NodeTopology, share: float, reason: str) -> None:
    (found,) = bound((0,), on=on, share=share)
    assert found == Binding((), reason)


def test_a_node_of_which_nothing_is_known_binds_nothing() -> None:
    (found,) = bindings(None, [()], HOST, cpus=0, share=1, gang_id="g")
    assert found == Binding((), "not bound: the node's topology is not known")


def test_asked_processors_are_given_even_where_nothing_is_near() -> None:
    first, second = bindings(None, [(), ()], HOST, cpus=2, share=1, gang_id="g")
    assert len({*first.cpus, *second.cpus}) == 4
    assert first.why == "2 of all 64, as cpus=2 asks for; not near: the node's topology is not known"


def test_a_rank_with_gpus_on_both_sockets_gets_both_and_prefers_no_memory() -> None:
    (found,) = bound([(0, 7)])
    assert len(found.cpus) == 64
    assert (found.numa, found.numa_why) == (None, "its GPUs are on several NUMA nodes")


def test_memory_is_never_preferred_on_a_gpus_own_numa_node() -> None:
    """On a coherent host: NUMA 0 holds the processors, 2 is the GPU's memory, 3 to 5 hold none."""
    bare = node()
    grace = replace(bare, gpus=(replace(bare.gpus[0], numa=(0, 3, 4, 5), memory_numa=2), *bare.gpus[1:]))
    assert bound((0,), on=grace)[0].numa == 0
    own = replace(bare, gpus=(replace(bare.gpus[0], numa=(2,), memory_numa=2), *bare.gpus[1:]))
    (found,) = bound((0,), on=own)
    assert (found.numa, found.numa_why) == (None, "only GPUs' own memory is near")


def test_lists_of_processors_are_read_as_the_kernel_writes_them() -> None:
    assert cpus_in("0-2,8") == {0, 1, 2, 8}
    assert cpus_in("") is None
    assert cpus_in("3-") == {3}
    assert cpus_in("0-99999999") is None
    assert cpus_in("5-3") is None
    assert cpus_in("1" * 5000) is None, "more digits than Python makes a number of"


@given(
    gpus=st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True),
    allowed=st.frozensets(st.integers(0, 63), min_size=1),
    cpus=st.sampled_from([0, 0.5, 1, 3, 16, 100]),
)
def test_no_rank_ever_gets_what_is_not_allowed_nor_more_than_it_asked_for(
    gpus: list[int], allowed: frozenset[int], cpus: float
) -> None:
    for gpu, each in zip(gpus, bound(tuple(gpus), host=Host(allowed=allowed), cpus=cpus), strict=True):
        assert set(each.cpus) <= allowed
        if cpus:
            assert 1 <= len(each.cpus) <= max(1, cpus)
        near = cpus_in(node().gpus[gpu].cpus or "") or frozenset()
        if near & allowed:
            assert set(each.cpus) <= near
