"""Bearer tokens, checked against the state alone."""

from __future__ import annotations

import msgspec
import pytest
from immutables import Map

from phalanx.core.errors import AuthError
from phalanx.wire_errors import NotAllowedError
from phalanx_control.service.auth import authenticate, bearer, new_token, split_token
from phalanx_control.service.permissions import Need
from phalanx_control.state.model import Owner, State, Token

NOW = 1_700_000_000_000


def _state(token_id: str, sha256: str, *, expires_wall_ms: int = 0, role: str = "member") -> State:
    token = Token(
        id=token_id,
        sha256=sha256,
        owner=Owner(workspace="w", user="ana"),
        role=role,
        created_wall_ms=NOW,
        expires_wall_ms=expires_wall_ms,
    )
    return msgspec.structs.replace(State(), tokens=Map({token_id: token}))


def test_a_token_opens_its_own_workspace() -> None:
    made = new_token()
    identity = authenticate(_state(made.id, made.sha256), made.text, NOW)
    assert identity.owner == Owner(workspace="w", user="ana", token_id=made.id)


def test_the_secret_is_not_what_is_kept() -> None:
    made = new_token()
    assert split_token(made.text)[1] not in made.sha256


def test_an_unknown_id_and_a_wrong_secret_are_told_apart_by_nobody() -> None:
    made, other = new_token(), new_token()
    state = _state(made.id, made.sha256)
    texts: set[str] = set()
    for wrong in (other.text, f"px_{made.id}_{split_token(other.text)[1]}"):
        with pytest.raises(AuthError) as refused:
            authenticate(state, wrong, NOW)
        texts.add(str(refused.value))
    assert len(texts) == 1


def test_a_revoked_token_opens_nothing() -> None:
    made = new_token()
    with pytest.raises(AuthError, match="revoked"):
        authenticate(State(), made.text, NOW)


def test_a_token_ends_at_the_millisecond_of_its_expiry() -> None:
    made = new_token()
    state = _state(made.id, made.sha256, expires_wall_ms=NOW + 1)
    assert authenticate(state, made.text, NOW).role == "member"
    with pytest.raises(AuthError, match="expired"):
        authenticate(state, made.text, NOW + 1)


@pytest.mark.parametrize("text", ["", "px_", "px__x", "px_abc", "py_a_b", "px_a_", "a b"])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(AuthError):
        authenticate(State(), text, NOW)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic x", "px_a_b"])
def test_a_header_without_a_bearer_token_is_refused(header: str | None) -> None:
    with pytest.raises(AuthError, match="no token"):
        bearer(header)


def test_the_scheme_of_the_header_may_have_any_case() -> None:
    assert bearer("bEaReR px_a_b ") == "px_a_b"


def test_a_role_that_is_too_low_is_named_with_the_one_that_is_needed() -> None:
    made = new_token()
    identity = authenticate(_state(made.id, made.sha256, role="viewer"), made.text, NOW)
    with pytest.raises(NotAllowedError, match=r"CreateToken needs the role 'admin'; this token is a 'viewer'"):
        identity.need(Need.ADMIN, "CreateToken")
