"""What an admin may say about who gets how much."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.core.errors import InvalidSpecError
from phalanx.policy import Account, Policy, policy_from_json, policy_of, shown

GIVEN = {
    "half_life": "2h",
    "min_runtime": 0,
    "workspaces": {
        "research": {
            "weight": 2,
            "gpus": 64,
            "limit": 128,
            "teams": {"nlp": {"gpus": 32, "users": {"ada": {"weight": 3}}}, "vision": {"users": ["bob"]}},
            "users": {"eve": {"limit": 8}},
        }
    },
}


def test_accounts_are_paths_and_everybody_has_one() -> None:
    policy = policy_from_json(json.dumps(GIVEN))
    assert (policy.half_life_s, policy.min_runtime_s, policy.guaranteed) == (7200, 0, 64)
    assert policy.path_of("research", "ada") == ("research", "@nlp", "ada")
    assert policy.path_of("research", "bob") == ("research", "@vision", "bob")
    assert policy.path_of("research", "zoe") == ("research", "zoe")
    assert policy.account(("research",)) == Account(weight=2, gpus=64, limit=128)
    assert policy.account(("research", "@nlp", "ada")).weight == 3
    assert policy.account(("research", "eve")).limit == 8
    assert policy.account(("other", "zoe")) == Account()
    assert shown(policy.path_of("research", "ada")) == "research/@nlp/ada"
    assert policy_from_json("") == Policy()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workspaces": 3}, "workspaces is 3: give a table"),
        ({"half_live": "1h"}, "policy has an unknown key 'half_live': use half_life"),
        ({"half_life": 0}, "half_life=0: give more than 0 seconds"),
        ({"min_runtime": -1}, "min_runtime=-1: give 0 seconds or more"),
        ({"workspaces": {"a": {"weight": 0}}}, "workspaces.a.weight=0: give more than 0"),
        ({"workspaces": {"a": {"gpus": "8"}}}, "workspaces.a.gpus='8': give a number"),
        ({"workspaces": {"a": {"gpus": True}}}, "workspaces.a.gpus=True"),
        ({"workspaces": {"a": {"limit": float("nan")}}}, "workspaces.a.limit=nan"),
        ({"workspaces": {"a": {"gpus": 9, "limit": 8}}}, "gpus=9 are guaranteed, and limit=8 is less"),
        ({"workspaces": {"a": {"quota": 9}}}, "workspaces.a has an unknown key 'quota': use weight, gpus, limit"),
        ({"workspaces": {"a/b": {}}}, "a name 'a/b'"),
        ({"workspaces": {"a\x1fb": {}}}, "a name 'a\\x1fb'"),
        ({"workspaces": {"a": {"users": ["@x"]}}}, "workspaces.a.users has a name '@x'"),
        ({"half_life": 1e306}, "half_life=1e+306: give 1 second to 10 years"),
        ({"half_life": 0.5}, "half_life=0.5: give 1 second to 10 years"),
        ({"workspaces": {"a": {"weight": 10**400}}}, "workspaces.a.weight=1000"),
        ({"workspaces": {"a": {"teams": {"t": {"gpus": 1}}}}}, "a: its parts are guaranteed 1 GPUs, itself gpus=0"),
        ({"workspaces": {"a": {"teams": {"t": {"users": [3]}}}}}, "workspaces.a.teams.t.users: 3 is no name"),
        (
            {"workspaces": {"a": {"teams": {"s": {"users": ["x"]}, "t": {"users": ["x"]}}}}},
            "user x is in teams s and t: keep one",
        ),
        (
            {"workspaces": {"a": {"teams": {"s": {"users": ["x"]}}, "users": ["x"]}}},
            "is in team s: give its terms",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_account(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpecError) as raised:
        policy_of(given)
    assert said in str(raised.value)


def test_what_is_no_json_or_too_long_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="the policy is no JSON"):
        policy_from_json("{")
    with pytest.raises(InvalidSpecError, match="give at most"):
        policy_from_json(" " * 300_000)
    with pytest.raises(InvalidSpecError, match="the policy is no JSON"):
        policy_from_json("[" * 100_000)
    with pytest.raises(InvalidSpecError, match=r"^half_life=nan"):
        policy_from_json('{"half_life": NaN}')
