"""Plain data ⇄ protobuf, field by field: the only file that knows both.

Every dataclass of `core.spec`, `core.messages` and `core.views` has a protobuf message of the same name with the same
field names. Enums travel as their words, tuples as repeated fields, name-value pairs as `Variable`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from phalanx.core import messages, spec, views
from phalanx_proto.v1 import agent_pb2, common_pb2, control_pb2

T = TypeVar("T")

_MODULES = (common_pb2, agent_pb2, control_pb2)
TO_AGENT = {
    "welcome": messages.Welcome,
    "prepare": messages.Prepare,
    "start": messages.Start,
    "stop": messages.Stop,
    "offer": messages.Offer,
    "cancel_call": messages.CancelCall,
    "ack": messages.Ack,
    "revoke_token": messages.RevokeToken,
}
FROM_AGENT = {
    "hello": messages.Hello,
    "report": messages.Report,
    "direct_report": messages.DirectReport,
    "member_prepared": messages.MemberPrepared,
    "member_ready": messages.MemberReady,
    "member_ended": messages.MemberEnded,
    "call_started": messages.CallStarted,
    "call_finished": messages.CallFinished,
    "call_refused": messages.CallRefused,
    "leave": messages.Leave,
}


def proto_class(name: str) -> type[Message]:
    """Returns the protobuf class called ``name``. Raises KeyError when there is none."""
    for module in _MODULES:
        if hasattr(module, name):
            return getattr(module, name)
    raise KeyError(f"no protobuf message called {name}")


def to_proto(value: Any) -> Any:
    """Returns the protobuf message of the same name as ``value``'s class.

    Text that is not Unicode, as a file name can be, is written with escapes: nothing that a user's program says may
    be unsendable. Environment variables are the exception: they raise UnicodeEncodeError, since a run may hang on them.
    """
    cls = type(value)
    out: dict[str, Any] = {}
    for name in _field_names(cls):
        item = getattr(value, name)
        if isinstance(item, Enum):
            out[name] = item.value
        elif isinstance(item, tuple):
            out[name] = [_item_to_proto(x) for x in item]
        elif is_dataclass(item):
            out[name] = to_proto(item)
        else:
            out[name] = item
    made = proto_class(cls.__name__)
    try:
        return made(**out)
    except UnicodeEncodeError:
        return made(**{name: _escaped(item) for name, item in out.items()})


def from_proto(cls: type[T], message: Any) -> T:
    """Returns ``cls`` made from the protobuf message; absent parts get the dataclass's defaults."""
    out: dict[str, Any] = {}
    for name, read in _readers(cls).items():
        if (
            message.DESCRIPTOR.fields_by_name[name].message_type is None
            or _is_repeated(message, name)
            or message.HasField(name)
        ):
            out[name] = read(getattr(message, name))
    return cls(**out)


def wrap_to_agent(value: messages.ToAgent) -> agent_pb2.ToAgent:
    """Puts one message to an agent into its envelope."""
    return agent_pb2.ToAgent(**{_key(TO_AGENT, type(value)): to_proto(value)})


def unwrap_to_agent(envelope: agent_pb2.ToAgent) -> messages.ToAgent | None:
    """Takes it out again; None for a kind that this version does not know."""
    key = envelope.WhichOneof("message")
    return from_proto(TO_AGENT[key], getattr(envelope, key)) if key in TO_AGENT else None


def wrap_from_agent(value: messages.FromAgent, *, seq: int = 0) -> agent_pb2.FromAgent:
    """Puts one message of an agent into its envelope, with its sequence number."""
    return agent_pb2.FromAgent(seq=seq, **{_key(FROM_AGENT, type(value)): to_proto(value)})


def unwrap_from_agent(envelope: agent_pb2.FromAgent) -> messages.FromAgent | None:
    """Takes it out again; None for a kind that this version does not know."""
    key = envelope.WhichOneof("message")
    return from_proto(FROM_AGENT[key], getattr(envelope, key)) if key in FROM_AGENT else None


def _key(table: dict[str, type], cls: type) -> str:
    return next(key for key, value in table.items() if value is cls)


@cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def _item_to_proto(item: Any) -> Any:
    if is_dataclass(item):
        return to_proto(item)
    if isinstance(item, tuple):
        return common_pb2.Variable(name=item[0], value=item[1])
    return item.value if isinstance(item, Enum) else item


def _escaped(item: Any) -> Any:
    if isinstance(item, list):
        return [_escaped(x) for x in cast("list[Any]", item)]
    return item.encode("utf-8", "backslashreplace").decode() if isinstance(item, str) else item


def _is_repeated(message: Any, name: str) -> bool:
    return hasattr(getattr(message, name), "extend")


@cache
def _readers(cls: type) -> dict[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(cls, {**vars(spec), **vars(messages), **vars(views)})
    return {name: _reader(hints[name]) for name in _field_names(cls)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if typing.get_origin(item) is tuple:
            return lambda values: tuple((v.name, v.value) for v in values)
        read = _reader(item)
        return lambda values: tuple(read(v) for v in values)
    if isinstance(hint, types.UnionType):
        raise TypeError(f"unions do not travel: {hint}")
    if is_dataclass(hint):
        return lambda message: from_proto(typing.cast("type[Any]", hint), message)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return hint if hint in (int, float, str, bool, bytes) else lambda value: value
