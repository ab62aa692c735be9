"""One table from PhalanxError to gRPC status and back."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
import pytest

from phalanx.core import errors
from phalanx.wire_errors import NotAllowedError, metadata_dict, metadata_of, status_of, to_exception

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.PhalanxError)]


@dataclass(frozen=True)
class _Failed:
    """What gRPC gives a client."""

    status: grpc.StatusCode
    text: str = "what happened"
    trailing: tuple[tuple[str, str | bytes], ...] = field(default=())

    def code(self) -> grpc.StatusCode:
        return self.status

    def details(self) -> str:
        return self.text

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.trailing


@pytest.mark.parametrize("cls", ALL)
def test_every_error_comes_back_as_itself_with_its_hint(cls: type[errors.PhalanxError]) -> None:
    sent = cls("what happened: größer", hint="try — this")
    got = to_exception(_Failed(status_of(sent), str(sent), metadata_of(sent)))
    assert type(got) is cls
    assert (str(got), got.hint) == (str(sent), "try — this")


@pytest.mark.parametrize(
    ("status", "family"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.ConnectionFailedError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.ConnectionFailedError),
        (grpc.StatusCode.UNAUTHENTICATED, errors.AuthError),
        (grpc.StatusCode.PERMISSION_DENIED, errors.AuthError),
        (grpc.StatusCode.NOT_FOUND, errors.NotFoundError),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidSpecError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.VersionError),
        (grpc.StatusCode.INTERNAL, errors.PhalanxError),
    ],
)
def test_a_status_without_a_code_becomes_its_family(status: grpc.StatusCode, family: type[errors.PhalanxError]) -> None:
    assert type(to_exception(_Failed(status))) is family


def test_a_role_that_is_too_low_is_its_own_status_and_the_same_family() -> None:
    sent = NotAllowedError("no")
    assert status_of(sent) is grpc.StatusCode.PERMISSION_DENIED
    assert isinstance(to_exception(_Failed(status_of(sent), "no", metadata_of(sent))), errors.AuthError)


def test_a_code_of_a_later_version_becomes_the_family_of_its_status() -> None:
    failed = _Failed(grpc.StatusCode.NOT_FOUND, trailing=(("px-code", "NEW-CODE"),))
    assert type(to_exception(failed)) is errors.NotFoundError


def test_metadata_that_are_absent_are_empty() -> None:
    assert metadata_dict(None) == {}
