"""What signs a webhook, which addresses one may go to, and how a receiver tells it from another request."""

from __future__ import annotations

import pytest

import phalanx
from phalanx import webhooks
from phalanx.core.clock import ManualClock
from phalanx.core.errors import InvalidSpecError
from phalanx.core.webhooks import check_url, secret_bytes, secret_text, signature
from phalanx_control.webhook_targets import ForbiddenTargetError, is_public, refuse_private

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
HEADERS = {
    "Webhook-Id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "Webhook-Timestamp": "1614265330",
    "Webhook-Signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
"""The example of the public specification."""
THEN = ManualClock(wall_ms=1_614_265_330_000 + 2_000)


def test_the_specifications_example_is_signed_as_it_says() -> None:
    signed = signature(secret_bytes(SECRET), HEADERS["Webhook-Id"], 1614265330, BODY)
    assert signed == HEADERS["Webhook-Signature"]
    assert secret_text(secret_bytes(SECRET)) == SECRET


def test_a_receiver_needs_to_import_the_package_alone() -> None:
    assert phalanx.__getattr__("webhooks") is webhooks
    assert all(hasattr(phalanx, name) for name in phalanx.__all__)


def test_a_receiver_gets_what_was_said_from_bytes_or_text() -> None:
    assert webhooks.verify(HEADERS, BODY, SECRET, clock=THEN) == {"test": 2432232314}
    assert webhooks.verify(HEADERS, BODY.decode(), SECRET.removeprefix("whsec_"), clock=THEN) == {"test": 2432232314}


def test_one_of_several_signatures_is_enough_while_a_secret_is_rotated() -> None:
    several = {**HEADERS, "Webhook-Signature": f"v1,AAAA v1a,whatever {HEADERS['Webhook-Signature']}"}
    assert webhooks.verify(several, BODY, SECRET, clock=THEN)


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        ({}, BODY, r"no webhook-id and no webhook-timestamp and no webhook-signature header"),
        ({"Webhook-Id": "msg_other"}, BODY, r"the signature does not match"),
        ({"Webhook-Timestamp": "1614265331"}, BODY, r"the signature does not match"),
        ({}, BODY + b" ", r"the signature does not match"),
        ({"Webhook-Signature": "v1,"}, BODY, r"the signature does not match"),
        ({"Webhook-Signature": "v1,\u00fc"}, BODY, r"the signature does not match"),
        ({"Webhook-Signature": "v2,abc"}, BODY, r"no v1 signature"),
        ({"Webhook-Timestamp": "soon"}, BODY, r"'soon' is no number of seconds since 1970"),
        ({"Webhook-Timestamp": "1614265030"}, BODY, r"was sent 302 s ago: up to 300 s are allowed"),
        ({"Webhook-Timestamp": "1614265633"}, BODY, r"was sent in 301 s: up to 300 s are allowed"),
    ],
    ids=["none", "id", "time", "body", "empty", "no ASCII", "version", "no time", "old", "early"],
)
def test_what_is_not_signed_or_not_fresh_is_refused(headers: dict[str, str], body: bytes, message: str) -> None:
    shown = {**HEADERS, **headers} if headers or body != BODY else {}
    with pytest.raises(webhooks.WebhookError, match=message):
        webhooks.verify(shown, body, SECRET, clock=THEN)


def test_another_secret_matches_nothing_and_no_secret_is_an_error_of_the_receivers() -> None:
    with pytest.raises(webhooks.WebhookError, match=r"another secret"):
        webhooks.verify(HEADERS, BODY, secret_text(b"x" * 24), clock=THEN)
    for wrong in ("", "whsec_", "whsec_?"):
        with pytest.raises(ValueError, match=r"secret"):
            webhooks.verify(HEADERS, BODY, wrong, clock=THEN)


@pytest.mark.parametrize("url", ["https://example.com", "http://[2001:db8::1]:8080/a?b=c", "https://x.test/%20"])
def test_web_addresses_are_addresses(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("example.com/hook", r"give an address such as"),
        ("ftp://example.com", r"give an address such as"),
        ("file:///etc/passwd", r"give an address such as"),
        ("https://", r"give an address such as"),
        ("https://u:secret@example.com/", r"no user and password"),
        ("https://example.com/\r\nHost: x", r"ASCII characters without spaces"),
        ("https://example.com/a b", r"ASCII characters without spaces"),
        ("https://example.com:99999/", r"Port out of range"),
        ("https://example.com/#x", r"leave out what follows '#'"),
        ("https://example.com/" + "x" * 3000, r"up to 2048"),
    ],
    ids=["no scheme", "ftp", "file", "no host", "password", "header", "space", "port", "fragment", "long"],
)
def test_other_addresses_are_refused_where_they_are_given(url: str, message: str) -> None:
    def work() -> None: ...

    function = phalanx.gpu_function(gpus=0)(work)
    with pytest.raises(InvalidSpecError, match=message) as raised:
        function.options(webhook=url)
    assert "secret" not in str(raised.value)
    with pytest.raises(InvalidSpecError, match=message):
        phalanx.gpu_function(gpus=0, webhook=url)(work)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "240.0.0.1", "::1", "::", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "::7f00:1",
    ],
)  # fmt: skip
def test_addresses_of_this_machine_and_of_private_networks_are_no_public_ones(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(ForbiddenTargetError, match=r"^internal.example.com leads to no public address") as raised:
        refuse_private("internal.example.com", ["93.184.215.14", address])
    assert address not in str(raised.value), "users would learn what names mean within the network of the control plane"
    assert raised.value.address == address


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:8.8.8.8"])
def test_addresses_of_the_public_network_are(address: str) -> None:
    assert is_public(address)
    refuse_private("example.com", [address])
