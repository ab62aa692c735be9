"""Addresses as NVML writes them and as the kernel does, and what is counted where one is not known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from phalanx_agent.discovery.answers import kernel_address
from phalanx_agent.discovery.nvlinks import NvLinks, link_between


@pytest.mark.parametrize(
    ("told", "address"),
    [
        (b"00000000:3B:00.0", "0000:3b:00.0"),
        ("0000A1B2:00:00.0", "a1b2:00:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("", ""),
    ],
)
def test_an_address_is_written_as_the_kernel_names_the_device(told: str | bytes, address: str) -> None:
    assert kernel_address(SimpleNamespace(busId=told)) == address
    assert kernel_address(None) == ""


def test_links_to_an_unknown_peer_are_no_links_to_a_gpu_whose_address_is_unknown() -> None:
    links = NvLinks(active=2, total=2, to=(("", 2),))
    assert link_between(links, links, "", None).nvlinks == 0
