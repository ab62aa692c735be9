"""Which version of the log brought what: a leader writes only what every live replica can read."""

from __future__ import annotations

from phalanx.core.spec import FunctionSpec, Retrying
from phalanx_control.state import events
from phalanx_control.state.events import AnyEvent, Events

SINCE: dict[type, int] = {
    events.DirectReportTaken: 2,
    events.LinesFiled: 2,
    events.LedgerMonthDropped: 2,
    events.FabricSet: 3,
    events.RanksEquipped: 3,
    events.NodeLeft: 4,
    events.CallOverdue: 5,
    events.KeyTaken: 5,
    events.KeysForgotten: 5,
    events.WebhooksTried: 7,
    events.WebhookSecretRotated: 7,
    events.NodeCordoned: 8,
    events.NodeUncordoned: 8,
    events.NodeBlamed: 8,
    events.PolicySet: 8,
    events.CallDebugged: 8,
    events.AttemptCredited: 8,
}
"""The schema version that brought a kind; 1 for all others."""
NAMED_NODE_SCHEMA = 4
"""Since when a function may name its node."""
PARENT_SCHEMA = 5
"""Since when a call knows from inside which one it was made."""
TERMS_SCHEMA = 5
"""Since when a call may have terms of its own, and a function say how it is tried again."""
HANG_SCHEMA = 6
"""Since when a function may have a ``hang_timeout``, and calls end for it."""
STREAMS_SCHEMA = 6
"""Since when a function may be a generator, whose calls are streams."""
FRESH_SCHEMA = 6
"""Since when a function may ask for a gang of its own for each call."""
HOLD_SCHEMA = 7
"""Since when a function may have its gang held after a failure."""
WEBHOOK_SCHEMA = 7
"""Since when somebody may be told of the end of a call."""
SPENT_SCHEMA = 8
"""Since when a call knows how long its former attempts ran."""
STANDING_SCHEMA = 8
"""Since when a function may have a priority, and give way to others."""
WHERE_SCHEMA = 8
"""Since when a function may say on which nodes it may be, and beside whom."""


def since(event: AnyEvent) -> int:
    """Returns the schema version that a reader of this event must know."""
    if isinstance(event, events.FunctionRegistered):
        return since_of_spec(event.function.spec)
    if isinstance(event, events.CallRequeued) and (event.busy_ms or event.credited or event.error):
        return SPENT_SCHEMA
    if isinstance(event, events.CallAccepted | events.CallRan) and event.call is not None:
        call = event.call
        if call.webhook:
            return WEBHOOK_SCHEMA
        if call.parent:
            return PARENT_SCHEMA
        return TERMS_SCHEMA if call.retries is not None or call.deadline_ms or call.key else 1
    return SINCE.get(type(event), 1)


def since_of_spec(spec: FunctionSpec) -> int:
    """Returns the schema version that a reader of a function must know, so that it keeps to it."""
    return newest_of_spec(spec)[0]


def newest_of_spec(spec: FunctionSpec) -> tuple[int, str]:
    """Returns the newest thing that a function says: since which schema version, and in words."""
    limits, resources = spec.limits, spec.resources
    things = (
        (resources.max_gpus, WHERE_SCHEMA, f"takes up to {resources.max_gpus} GPUs"),
        (resources.min_memory_gb, WHERE_SCHEMA, "has a min_memory_gb"),
        (resources.isolation, WHERE_SCHEMA, f"has isolation={resources.isolation!r}"),
        (resources.spread, WHERE_SCHEMA, "has spread=True"),
        (resources.fabric, WHERE_SCHEMA, f"has fabric={resources.fabric!r}"),
        (resources.prefer_fabric, WHERE_SCHEMA, f"has prefer_fabric={resources.prefer_fabric!r}"),
        (spec.priority, STANDING_SCHEMA, "has a priority"),
        (spec.preemptible, STANDING_SCHEMA, "is preemptible"),
        (limits.hold_on_failure_s, HOLD_SCHEMA, "is held on failure"),
        (spec.webhook, WEBHOOK_SCHEMA, "has a webhook"),
        (spec.streams, STREAMS_SCHEMA, "is a generator"),
        (spec.fresh, FRESH_SCHEMA, "asks for a gang of its own for each call"),
        (limits.hang_timeout_s, HANG_SCHEMA, "has a hang_timeout"),
        (limits.retrying != Retrying(), TERMS_SCHEMA, "says how it is tried again"),
        (resources.node, NAMED_NODE_SCHEMA, f"names node {resources.node!r}"),
    )
    return next(((since, words) for said, since, words in things if said), (1, ""))


def schema_of(batch: Events) -> int:
    """Returns the schema version that a reader of ``batch`` must know."""
    return max(map(since, batch), default=1)
