"""Refuses a store that would lose what it acknowledged. Asks only; changes no setting of the server."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from phalanx_control.log.errors import VolatileStoreError

_logger = logging.getLogger(__name__)
_SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy", "maxmemory")
_MIN_MAJOR = 7
_ALLOW = "or pass --allow-volatile-store to accept losing acknowledged calls"


async def check_durability(client: Redis, *, allow_volatile: bool, replicas: int = 0) -> None:
    """Raises VolatileStoreError naming each setting that is wrong and what to set, and that fewer than ``replicas`` are
    connected; only warns if ``allow_volatile``.
    """
    wrong = [*await _what_is_wrong(client), *await _what_replicas_lack(client, replicas)]
    if not wrong:
        return
    if not allow_volatile:
        raise VolatileStoreError("the store would lose acknowledged calls: " + "; ".join(wrong), hint=_ALLOW)
    _logger.warning("store is volatile and was allowed", extra={"wrong": wrong})


async def _what_is_wrong(client: Redis) -> list[str]:
    info: Mapping[str, object] = await client.info("server")
    version = str(info.get("valkey_version") or info["redis_version"])
    major = int(version.partition(".")[0])
    wrong = [] if major >= _MIN_MAJOR else [f"version {version}: use Redis 7, Valkey, or later"]
    try:
        settings = await client.config_get(*_SETTINGS)
    except ResponseError as e:
        return [*wrong, f"its settings cannot be read ({e}): allow CONFIG GET to this user"]
    if settings.get("appendonly") != "yes":
        wrong.append("appendonly is off: set `appendonly yes`")
    if settings.get("appendfsync") != "always":
        wrong.append(f"appendfsync is {settings.get('appendfsync')!r}: set `appendfsync always`")
    if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy") != "noeviction":
        wrong.append(f"maxmemory-policy is {settings.get('maxmemory-policy')!r}: set `maxmemory-policy noeviction`")
    return wrong


async def _what_replicas_lack(client: Redis, replicas: int) -> list[str]:
    if not replicas:
        return []
    info: Mapping[str, object] = await client.info("replication")
    connected = int(str(info.get("connected_slaves", 0)))
    if connected >= replicas:
        return []
    return [f"{connected} of {replicas} replicas are connected: start them with `replicaof`, or lower --store-replicas"]
