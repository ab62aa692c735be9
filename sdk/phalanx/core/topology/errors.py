"""What importers raise."""

from __future__ import annotations

from phalanx.core.errors import InvalidSpecError

CHECK_IT = "check the file with `gpuctl topo import`"


class UnreadableTopologyError(InvalidSpecError):
    """A text that is not what it was said to be. ``line`` counts from 1; 0 where no line is to blame."""

    def __init__(self, message: str, *, line: int = 0, hint: str = "") -> None:
        super().__init__(f"line {line}: {message}" if line else message, hint=hint or CHECK_IT)
        self.line = line
