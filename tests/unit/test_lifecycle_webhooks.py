"""Whose end is told, until when, and what of it is in the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.errors import InvalidSpecError, VersionError
from phalanx.core.messages import CallTerms
from phalanx.core.webhooks import receiver_of
from phalanx_control.lifecycle import filing
from phalanx_control.lifecycle.decide import decide
from phalanx_control.lifecycle.facts import LiveFacts
from phalanx_control.state import commands as c
from phalanx_control.state import ordered
from phalanx_control.state.events import WebhookTry
from phalanx_control.state.model import BodyRef, Call, from_jsonable, to_jsonable
from phalanx_control.state.schemas import schema_of
from phalanx_control.state.untold import Untold, build, due
from phalanx_control.views import call_view
from tests.support.builders import ANA, World, call_id, node_info, spec
from tests.support.invariants import check_history, check_state

URL = "https://hooks.example.com/T0/secret?key=1"
TERMS = CallTerms(webhook=URL, map_id="m-" + "0" * 26)


def ended(world: World, n: int = 1, terms: CallTerms | None = TERMS, **of_function: str) -> Call:
    function = world.register(replace(spec(), **of_function))
    world.submit(n, function, terms=terms)
    world.cancel(call_id(n))
    return world.call(call_id(n))


def shown(world: World, call: Call) -> str:
    return call_view(world.state, world.call(call.id), LiveFacts()).webhook


def waiting(world: World) -> list[ordered.Key]:
    return [key for line in world.state.untold.lines.values() for key in ordered.in_order(line)]


def tried(world: World, call: Call, **what: object) -> Call:
    world.do(c.NoteWebhooks(tries=(WebhookTry(call_id=call.id, **what),)))  # pyright: ignore[reportArgumentType]
    return world.call(call.id)


def test_an_end_is_to_be_told_from_the_moment_that_it_is_in_the_log() -> None:
    world = World(node_info())
    world.submit(1, world.register(spec()), terms=TERMS)
    assert world.state.untold == Untold()
    assert shown(world, world.call(call_id(1))) == "https://hooks.example.com/…, when it has ended"
    world.cancel(call_id(1))
    call = world.call(call_id(1))
    assert waiting(world) == [(call.ended_wall_ms, call.id)]
    assert shown(world, call) == "waits to be told to https://hooks.example.com/…"
    check_state(world.state)
    check_history(world.history, world.state)


def test_a_function_may_name_whom_to_tell_and_a_call_somebody_else() -> None:
    world = World(node_info())
    assert ended(world, 1, None, webhook="https://a.example.com").webhook == "https://a.example.com"
    assert ended(world, 2, TERMS, webhook="https://a.example.com").webhook == URL
    assert ended(world, 3, None).delivery is None
    assert [receiver for receiver, _ in due(world.state.untold, world.wall_ms)] == [
        "a.example.com:443",
        "hooks.example.com:443",
    ]


def test_attempts_are_kept_and_the_last_one_ends_the_telling() -> None:
    world = World(node_info())
    call = ended(world)
    call = tried(world, call, status=503, next_wall_ms=world.wall_ms + 5000)
    assert waiting(world) == [(world.wall_ms + 5000, call.id)]
    assert shown(world, call).endswith("again after 1 attempt, the last one: answered 503")
    tried(world, call, status=200, over="delivered")
    assert world.state.untold == Untold()
    assert shown(world, call) == "delivered after 2 attempts: https://hooks.example.com/…, answered 200"
    assert world.do(c.NoteWebhooks(tries=(WebhookTry(call_id=call.id), WebhookTry(call_id=call_id(9))))) == ()
    check_history(world.history, world.state)


def test_a_snapshot_holds_who_is_to_be_told() -> None:
    world = World(node_info())
    ended(world)
    world.do(c.RotateWebhookSecret(owner=ANA, from_version=0))
    again = from_jsonable(to_jsonable(world.state))
    assert again.untold == world.state.untold
    assert again.webhook_keys == world.state.webhook_keys
    assert again.webhook_keys[ANA.workspace].version == 1


def test_a_secret_is_rotated_once_however_often_one_asks() -> None:
    world = World(node_info())
    rotate = c.RotateWebhookSecret(owner=ANA, from_version=0)
    assert len(world.do(rotate)) == 1
    assert world.do(rotate) == ()
    assert world.state.webhook_keys[ANA.workspace].version == 1
    assert len(world.do(replace(rotate, from_version=1))) == 1
    assert world.state.webhook_keys[ANA.workspace].version == 2


def test_a_call_stays_until_its_end_is_told_unless_there_are_too_many() -> None:
    world = World(node_info())
    call = ended(world)
    ended(world, 2, None)
    world.wait(2 * filing.KEEP.ms)
    keep = filing.Keep(calls=0)
    assert filing.calls_to_archive(world.state, world.log_ms, keep) == (call_id(2),)
    assert filing.calls_to_archive(world.state, world.log_ms, replace(keep, calls_at_most=1)) == (call.id, call_id(2))
    world.do(c.ArchiveCalls(call_ids=(call.id,)))
    assert world.state.untold == Untold()
    archived = call_view(world.state, call, LiveFacts()).webhook
    assert archived == "given up after 0 attempts: https://hooks.example.com/…, its call was archived"
    check_history(world.history, world.state)


def test_older_replicas_are_not_given_calls_whose_end_they_would_not_tell() -> None:
    world = World(node_info())
    function = world.register(spec())
    old = replace(world.now, schema=6)
    submit = c.Submit(call_id=call_id(1), function_id=function, owner=ANA, args=BodyRef(key="k", size=3), terms=TERMS)
    with pytest.raises(VersionError, match=r"knows no webhooks"):
        decide(world.state, submit, old)
    with pytest.raises(VersionError, match=r"knows no webhooks"):
        decide(world.state, c.RotateWebhookSecret(owner=ANA, from_version=0), old)
    with pytest.raises(VersionError, match=r"train has a webhook, which an older replica"):
        decide(world.state, c.RegisterFunction(owner=ANA, spec=replace(spec(), webhook=URL)), old)
    assert schema_of(decide(world.state, submit, world.now)) == 7
    assert schema_of(decide(world.state, replace(submit, terms=CallTerms()), world.now)) == 1


@pytest.mark.parametrize(
    "terms",
    [CallTerms(webhook="ftp://x"), CallTerms(webhook="https://u:p@x"), CallTerms(webhook=URL, map_id="m-\n")],
    ids=["scheme", "password", "map"],
)
def test_what_no_client_of_ours_would_send_is_refused(terms: CallTerms) -> None:
    world = World(node_info())
    with pytest.raises(InvalidSpecError):
        world.submit(1, world.register(spec()), terms=terms)


def test_a_function_without_a_webhook_keeps_the_id_that_it_had() -> None:
    assert spec().function_id == replace(spec(), webhook="").function_id
    assert spec().function_id != replace(spec(), webhook=URL).function_id


@pytest.mark.parametrize(
    "url", ["http://h", "http://H/a", "http://h:80/b?c", "http://h.", "http://h.:80/#", "HTTP://h/"]
)
def test_one_receiver_is_one_however_its_name_is_written(url: str) -> None:
    assert receiver_of(url) == "h:80"


@pytest.mark.parametrize(
    "url", ["https://h", "http://h:81", "http://g.h", "http://[::1]", "http://h:99999", "http://[", ""]
)
def test_another_port_or_name_is_another_receiver_and_nonsense_is_one_too(url: str) -> None:
    assert receiver_of(url) != "h:80"


def test_receivers_come_by_their_longest_due_call_however_many_wait_for_one() -> None:
    keys = [*(("slow:80", (n, call_id(n))) for n in range(10, 1000)), ("quick:80", (500, call_id(1)))]
    told = build(reversed(keys))
    assert [(receiver, next(calls)) for receiver, calls in due(told, 2000)] == [
        ("slow:80", call_id(10)),
        ("quick:80", call_id(1)),
    ]
    assert [(receiver, len(list(calls))) for receiver, calls in due(told, 499)] == [("slow:80", 490)]


def test_calls_that_wait_to_be_told_do_not_keep_others_from_the_archive() -> None:
    world = World(node_info())
    for n in range(filing.AT_ONCE + 1):
        ended(world, n)
    ended(world, 9999, None)
    world.wait(2 * filing.KEEP.ms)
    assert filing.calls_to_archive(world.state, world.log_ms, filing.Keep(calls=0)) == (call_id(9999),)
