"""Dataclasses and protobuf messages: the same fields on both sides, and every value survives the way there and back."""

from __future__ import annotations

import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core import messages, spec, views
from phalanx.wire import (
    FROM_AGENT,
    TO_AGENT,
    from_proto,
    proto_class,
    to_proto,
    unwrap_from_agent,
    unwrap_to_agent,
    wrap_from_agent,
    wrap_to_agent,
)
from phalanx_proto.v1 import agent_pb2

CLASSES: list[type] = [
    cls
    for module in (spec, messages, views)
    for cls in vars(module).values()
    if isinstance(cls, type) and is_dataclass(cls) and cls.__module__ == module.__name__
]
NAMES = {**vars(spec), **vars(messages), **vars(views)}
INT32 = st.integers(-(2**31), 2**31 - 1)
SPEC_CHOICES = {
    "gpus": st.sampled_from([0.0, 0.5, 1.0, 8.0]),
    "cpus": st.floats(0, 1e6, width=32),
    "memory_gb": st.floats(0, 1e6, width=32),
    "nodes": st.just(0),
    "min_memory_gb": st.just(0.0),
    "isolation": st.sampled_from(["", "node"]),
    "spread": st.just(False),
    "fabric": st.just(""),
    "prefer_fabric": st.just(""),
    "max_gpus": st.just(0),
    "retries": st.integers(0, 100),
    "backoff": st.floats(1, 100),
    "initial_delay_s": st.floats(0, 60),
    "max_delay_s": st.floats(60, 86_400),
    "retry_on": st.lists(st.text("abc.", min_size=1, max_size=20), max_size=2).map(tuple),
    "backend": st.sampled_from(["auto", "nccl", "gloo"]),
    "launch": st.sampled_from(["per_gpu", "per_node", "single"]),
    "returns": st.sampled_from(["rank0", "all"]),
    "name": st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20),
    "app": st.text(st.characters(categories=["L", "N"]), max_size=20),
    "priority": st.integers(-spec.MAX_PRIORITY, spec.MAX_PRIORITY),
    "webhook": st.sampled_from(["", "https://example.com/hooks?a=b"]),
}
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: INT32,
    float: st.floats(0, 2_592_000, allow_nan=False),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if typing.get_origin(item) is tuple:
            pairs = st.tuples(PLAIN[str], PLAIN[str])
            return st.lists(pairs, max_size=2).map(tuple)
        return st.lists(strategy(item), max_size=2).map(tuple)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    return values(hint) if is_dataclass(hint) else PLAIN[hint]


def values(cls: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, NAMES)
    special = SPEC_CHOICES if cls.__module__ == spec.__name__ else {}
    return st.builds(cls, **{f.name: special.get(f.name, strategy(hints[f.name])) for f in fields(cls)})


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_dataclass_has_a_message_with_the_same_fields(cls: type) -> None:
    ours = [f.name for f in fields(cls)]
    theirs = [f.name for f in proto_class(cls.__name__).DESCRIPTOR.fields]
    assert ours == theirs


@pytest.mark.parametrize("fabric", [{"fabric": "nvlink"}, {"prefer_fabric": "rail"}])
def test_what_only_goes_with_certain_gpus_survives(fabric: dict[str, str]) -> None:
    asked = spec.Resources(gpus=8, max_gpus=16, min_memory_gb=80, spread=True, **fabric)  # pyright: ignore[reportArgumentType]
    assert from_proto(spec.Resources, to_proto(asked)) == asked


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_an_empty_dataclass_survives(cls: type) -> None:
    value = cls(name="f") if cls is spec.FunctionSpec else cls()
    assert from_proto(cls, proto_class(cls.__name__).FromString(to_proto(value).SerializeToString())) == value


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_value_survives_the_way_there_and_back(cls: type, data: st.DataObject) -> None:
    value = data.draw(values(cls))
    wire = to_proto(value).SerializeToString()
    assert from_proto(cls, proto_class(cls.__name__).FromString(wire)) == value


@pytest.mark.parametrize("kind", TO_AGENT.values(), ids=lambda c: c.__name__)
def test_messages_to_agents_survive_their_envelope(kind: type) -> None:
    envelope = wrap_to_agent(kind())
    assert unwrap_to_agent(agent_pb2.ToAgent.FromString(envelope.SerializeToString())) == kind()


@pytest.mark.parametrize("kind", FROM_AGENT.values(), ids=lambda c: c.__name__)
def test_messages_of_agents_survive_their_envelope_with_their_number(kind: type) -> None:
    envelope = agent_pb2.FromAgent.FromString(wrap_from_agent(kind(), seq=7).SerializeToString())
    assert envelope.seq == 7
    assert unwrap_from_agent(envelope) == kind()


def test_the_envelopes_know_every_message_that_the_contract_names() -> None:
    assert set(TO_AGENT.values()) == set(typing.get_args(messages.ToAgent))
    assert set(FROM_AGENT.values()) == set(typing.get_args(messages.FromAgent))
    to_agent = agent_pb2.ToAgent.DESCRIPTOR.oneofs_by_name["message"].fields
    from_agent = agent_pb2.FromAgent.DESCRIPTOR.oneofs_by_name["message"].fields
    assert [f.name for f in to_agent] == list(TO_AGENT)
    assert [f.name for f in from_agent] == list(FROM_AGENT)


def test_a_message_of_a_newer_version_is_none_and_its_unknown_fields_do_no_harm() -> None:
    assert unwrap_to_agent(agent_pb2.ToAgent()) is None
    assert unwrap_from_agent(agent_pb2.FromAgent(seq=3)) is None
    newer = to_proto(messages.Ack(seq=4)).SerializeToString() + b"\xfa\x3f\x03new"
    assert from_proto(messages.Ack, agent_pb2.Ack.FromString(newer)) == messages.Ack(seq=4)


def test_times_and_sizes_have_room_for_64_bits() -> None:
    for cls in CLASSES:
        for field in proto_class(cls.__name__).DESCRIPTOR.fields:
            if (
                field.name.endswith(("_ms", "_bytes", "fence", "epoch", "seq"))
                and field.type != FieldDescriptor.TYPE_BYTES
            ):
                narrow = field.type == FieldDescriptor.TYPE_INT32
                assert not narrow or field.name == "report_every_ms", f"{cls.__name__}.{field.name}"


def test_text_that_is_not_unicode_travels_with_escapes() -> None:
    error = messages.ErrorInfo(type_name="ValueError", message="bad file name: \udcff.txt", traceback="line \udc80")
    finished = messages.CallFinished(call_id="c-1", error=error)
    back = unwrap_from_agent(agent_pb2.FromAgent.FromString(wrap_from_agent(finished).SerializeToString()))
    assert isinstance(back, messages.CallFinished)
    assert back.error.message == "bad file name: \\udcff.txt"
    assert back.error.traceback == "line \\udc80"
    with pytest.raises(UnicodeEncodeError):
        to_proto(spec.EnvSpec(variables=(("NAME", "\udcff"),)))
