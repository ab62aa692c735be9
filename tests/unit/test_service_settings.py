"""Settings from flags and environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.errors import InvalidSpecError
from phalanx_control.settings import Address, Settings, parse

ARGV = ["--store", "unix:///run/s", "--data-dir", "/d"]


def test_flags_win_over_variables() -> None:
    settings = parse([*ARGV, "--cell", "flag"], {"PHALANX_CONTROL_CELL": "variable"})
    assert settings.cell == "flag"


def test_every_flag_has_a_variable() -> None:
    environ = {
        "PHALANX_CONTROL_STORE": "redis://h:1/0",
        "PHALANX_CONTROL_DATA_DIR": "/d",
        "PHALANX_CONTROL_WEB_LISTEN": "[::1]:81",
        "PHALANX_CONTROL_ALLOW_VOLATILE_STORE": "yes",
        "PHALANX_CONTROL_READY_FILE": "/r",
    }
    settings = parse([], environ)
    assert settings.web_listen == Address("::1", 81)
    assert settings.allow_volatile_store
    assert settings.ready_file == Path("/r")


def test_no_replica_of_the_store_is_waited_for_unless_told_so() -> None:
    assert parse(ARGV, {}).store_replicas == 0
    assert parse([*ARGV, "--store-replicas", "8"], {}).store_replicas == 8
    assert parse(ARGV, {"PHALANX_CONTROL_STORE_REPLICAS": "2"}).store_replicas == 2


def test_blobs_are_kept_in_the_data_folder_unless_told_otherwise() -> None:
    assert parse(ARGV, {}).blobs == "file:///d/blobs"


def test_two_replicas_without_a_name_get_different_ones() -> None:
    assert parse(ARGV, {}).replica_id != parse(ARGV, {}).replica_id


@pytest.mark.parametrize(
    ("argv", "environ", "says"),
    [
        (["--data-dir", "/d"], {}, "--store is not set"),
        (["--store", "unix:///s"], {}, "--data-dir is not set"),
        ([*ARGV, "--store", "http://x"], {}, "unix:///path/to/socket"),
        ([*ARGV, "--listen", "nonsense"], {}, "--listen 'nonsense': give host:port"),
        ([*ARGV, "--listen", "h:70000"], {}, "give host:port"),
        ([*ARGV, "--cell", "a:b"], {}, "--cell 'a:b'"),
        ([*ARGV, "--web-listen", "0.0.0.0:80"], {}, "loopback only"),
        ([*ARGV, "--store-replicas", "9"], {}, "--store-replicas '9': use a whole number from 0 to 8"),
        ([*ARGV, "--store-replicas", "-1"], {}, "use a whole number from 0 to 8"),
        (ARGV, {"PHALANX_CONTROL_STORE_REPLICAS": "some"}, "--store-replicas 'some': use a whole number"),
        (ARGV, {"PHALANX_CONTROL_BLOBS_SHARED": "maybe"}, "--blobs-shared 'maybe': use 1 or 0"),
    ],
)
def test_a_wrong_value_is_named_with_the_fix(argv: list[str], environ: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        parse(argv, environ)
    assert says in str(refused.value)


def test_an_advertised_host_is_what_others_are_told() -> None:
    def host(*more: str) -> str:
        settings: Settings = parse([*ARGV, *more], {})
        return settings.public_host

    assert host("--listen", "0.0.0.0:1", "--advertise", "cp.example") == "cp.example"
    assert host("--listen", "10.0.0.1:1") == "10.0.0.1"
