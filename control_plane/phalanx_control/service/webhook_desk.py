"""The secrets that sign a workspace's webhooks: derived from the cell's own secret, stored nowhere.

The log knows only which one is in force. After a rotation the one before it signs as well for a day, so that receivers
can be given the new one without missing anything.
"""

from __future__ import annotations

from phalanx.core.clock import Clock
from phalanx.core.views import WebhookSecret
from phalanx.core.webhooks import secret_text
from phalanx_control.certificates import derive
from phalanx_control.service.caller import caller
from phalanx_control.service.ports import ControllerPort
from phalanx_control.state.commands import RotateWebhookSecret
from phalanx_control.state.model import WebhookKey

BOTH_SIGN_MS = 24 * 3600 * 1000
_FIRST = WebhookKey(version=0, rotated_wall_ms=0)


class WebhookDesk:
    """Shows and rotates the present caller's secret, and hands out those that sign."""

    def __init__(self, controller: ControllerPort, secret: bytes, clock: Clock) -> None:
        self._controller = controller
        self._secret = secret
        self._clock = clock

    def secret(self) -> WebhookSecret:
        workspace = caller().owner.workspace
        key = self._key(workspace)
        text = secret_text(self._bytes(workspace, key.version))
        return WebhookSecret(secret=text, version=key.version, rotated_ms=key.rotated_wall_ms)

    async def rotate(self, from_version: int) -> WebhookSecret:
        """Returns the secret that signs instead of ``from_version``, also when it did so already."""
        await self._controller.execute(RotateWebhookSecret(owner=caller().owner, from_version=from_version))
        return self.secret()

    def signing(self, workspace: str) -> tuple[bytes, ...]:
        """Returns the secrets that sign now, the newest first."""
        key = self._key(workspace)
        both = key.version and self._clock.wall_ms() - key.rotated_wall_ms < BOTH_SIGN_MS
        versions = (key.version, key.version - 1) if both else (key.version,)
        return tuple(self._bytes(workspace, version) for version in versions)

    def _key(self, workspace: str) -> WebhookKey:
        return self._controller.state.webhook_keys.get(workspace, _FIRST)

    def _bytes(self, workspace: str, version: int) -> bytes:
        return derive(self._secret, "webhook", f"{workspace}\0{version}")
