"""What is checked before a function or a call is asked of the log: names, bodies, blobs that must be there."""

from __future__ import annotations

import hashlib

from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import Body
from phalanx.core.spec import FunctionSpec
from phalanx_control.service.blob_api import ClientBlobs
from phalanx_control.service.blob_reach import BlobReach
from phalanx_control.service.bodies import args_key, to_ref
from phalanx_control.service.queries import require_call_id
from phalanx_control.state.model import BodyRef
from phalanx_proto.v1 import common_pb2


def digest_of(args: common_pb2.Body) -> str:
    """Returns the SHA-256 of a call's arguments, wherever they are: a blob's name is that of its content."""
    return args.blob.removeprefix("sha256:") or hashlib.sha256(args.data).hexdigest()


class SubmitChecks:
    """Refuses early, with the fix, what could never run."""

    def __init__(self, blobs: ClientBlobs, reach: BlobReach) -> None:
        self._blobs = blobs
        self._reach = reach

    async def check_code(self, specs: tuple[FunctionSpec, ...]) -> None:
        """Raises InvalidSpecError where a function's code was not put before."""
        for spec in specs:
            for name in (spec.code.callable_blob, spec.code.bundle_blob):
                if name:
                    await self._require(name, f"the code of {spec.name!r}")

    async def args(self, call_id: str, body: Body) -> tuple[BodyRef, dict[str, bytes]]:
        """Returns what the log keeps of a call's arguments, and the bytes to append with it."""
        require_call_id(call_id)
        if body.blob:
            self._reach.require("an argument above 64 KiB")
            await self._require(body.blob, "the arguments")
        return to_ref(body, args_key(call_id))

    async def _require(self, name: str, what: str) -> None:
        if not await self._blobs.has(name):
            raise InvalidSpecError(f"{what} is not here: blob {name[:80]!r} was not put", hint="put it first")
