"""The parts that the clients' RPCs are made of, put together once by `service.server`."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx_control.service.blob_api import ClientBlobs
from phalanx_control.service.enrol import Enrolment
from phalanx_control.service.fabric import FabricDesk
from phalanx_control.service.follow import Follower
from phalanx_control.service.log_sources import Directory
from phalanx_control.service.node_desk import NodeDesk
from phalanx_control.service.past_desk import PastDesk
from phalanx_control.service.ports import ControllerPort
from phalanx_control.service.queries import Queries
from phalanx_control.service.queue_desk import QueueDesk
from phalanx_control.service.server_info import AboutServer
from phalanx_control.service.submit import SubmitChecks
from phalanx_control.service.tokens import TokenDesk
from phalanx_control.service.webhook_desk import WebhookDesk


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    controller: ControllerPort
    queries: Queries
    client_blobs: ClientBlobs
    directory: Directory
    tokens: TokenDesk
    enrolment: Enrolment
    follower: Follower
    submit: SubmitChecks
    about: AboutServer
    fabric: FabricDesk
    nodes: NodeDesk
    queue: QueueDesk
    past: PastDesk
    webhooks: WebhookDesk
