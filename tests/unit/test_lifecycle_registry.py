"""Functions, apps, tokens and leaders."""

from __future__ import annotations

import pytest

from phalanx.core.errors import AuthError, InvalidSpecError, NotFoundError, VersionError
from phalanx_control.state import commands as c
from phalanx_control.state import queries
from tests.support.builders import ANA, EVE, WALL_MS, World, spec

HASH = "ab" * 32


def test_registering_the_same_twice_is_once() -> None:
    world = World()
    world.register(spec())
    assert world.do(c.RegisterFunction(owner=ANA, spec=spec())) == ()


def test_two_tenants_with_the_same_content_have_two_functions() -> None:
    world = World()
    world.register(spec())
    world.do(c.RegisterFunction(owner=EVE, spec=spec()))
    hers = queries.function_key(world.state, "other", spec())
    assert hers != spec().function_id
    assert queries.function_of(world.state, hers, "other") is not None
    assert queries.function_of(world.state, hers, "default") is None
    assert queries.function_key(world.state, "default", spec()) == spec().function_id


def test_an_app_gets_a_new_version_only_when_its_content_changes() -> None:
    world = World()
    first = c.DeployApp(owner=ANA, app="shop", specs=(spec("a", gpus=1), spec("b")))
    assert world.kinds(world.do(first)) == ["FunctionRegistered", "FunctionRegistered", "AppDeployed"]
    assert world.do(first) == ()
    world.do(c.DeployApp(owner=ANA, app="shop", specs=(spec("a", gpus=2),)))
    app = world.state.apps["default/shop"]
    assert (app.version, list(app.functions)) == (2, ["a"])
    assert world.state.apps["default/shop"].deployed_wall_ms == WALL_MS


def test_an_app_needs_functions_with_names_of_their_own() -> None:
    world = World()
    with pytest.raises(InvalidSpecError, match="has no functions"):
        world.do(c.DeployApp(owner=ANA, app="shop", specs=()))
    with pytest.raises(InvalidSpecError, match="two functions called 'a'"):
        world.do(c.DeployApp(owner=ANA, app="shop", specs=(spec("a"), spec("a", gpus=2))))
    with pytest.raises(InvalidSpecError, match="app name"):
        world.do(c.DeployApp(owner=ANA, app="a/b", specs=(spec("a"),)))


def token(**changes: object) -> c.CreateToken:
    values: dict[str, object] = {"token_id": "t", "sha256": HASH, "owner": ANA, "role": "member", **changes}
    return c.CreateToken(**values)  # pyright: ignore[reportArgumentType]


def test_a_token_is_created_once_and_revoked_by_its_workspace() -> None:
    world = World()
    assert world.kinds(world.do(token())) == ["TokenCreated"]
    assert world.do(token()) == ()
    with pytest.raises(InvalidSpecError, match="is taken"):
        world.do(token(sha256="cd" * 32))
    with pytest.raises(NotFoundError):
        world.do(c.RevokeToken(token_id="t", owner=EVE))
    world.do(c.RevokeToken(token_id="t", owner=ANA))
    assert not world.state.tokens


@pytest.mark.parametrize(
    "changes", [{"sha256": "short"}, {"sha256": "x" * 64}, {"role": ""}, {"token_id": ""}, {"expires_wall_ms": 5}]
)
def test_a_token_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidSpecError):
        World().do(token(**changes))


def test_a_join_token_works_once_and_not_after_its_end() -> None:
    world = World()
    world.do(c.CreateJoinToken(sha256=HASH, expires_wall_ms=WALL_MS + 10))
    assert world.do(c.CreateJoinToken(sha256=HASH, expires_wall_ms=WALL_MS + 10)) == ()
    use = c.UseJoinToken(sha256=HASH, node_id="n1")
    world.do(use)
    with pytest.raises(AuthError):
        world.do(use)
    world.do(c.CreateJoinToken(sha256=HASH, expires_wall_ms=WALL_MS + 10))
    world.wait(10)
    with pytest.raises(AuthError):
        world.do(use)


def test_a_join_token_without_end_works_again_and_again() -> None:
    world = World()
    world.do(c.CreateJoinToken(sha256=HASH, expires_wall_ms=0))
    for node_id in ("n1", "n2"):
        assert world.kinds(world.do(c.UseJoinToken(sha256=HASH, node_id=node_id))) == ["JoinTokenUsed"]


def test_an_epoch_that_is_over_cannot_take_over() -> None:
    world = World()
    world.do(c.TakeOver(epoch=4, leader_id="b"))
    assert (world.state.epoch, world.state.took_over_ms) == (4, world.log_ms)
    with pytest.raises(VersionError):
        world.do(c.TakeOver(epoch=3, leader_id="a"))
