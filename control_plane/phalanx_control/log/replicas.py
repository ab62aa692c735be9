"""Writes that count only once replicas of the store have them, too. Which replicas those are, it does not know.

WAIT tells how many replicas have applied what its own connection wrote, so a script and its WAIT leave together, over
one connection. A new connection has written nothing and is told "all of them" at once: hence no WAIT without a write.

It speaks of the replicas' memory, not of their disks, which follow by their own `appendfsync`; the server itself
answers after its own fsync. And it chooses nobody: an acknowledged batch outlives the server's machine if a replica
that has it is promoted, which is certain where all replicas are waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError, ResponseError

WAIT_MS = 1000
"""How long the store waits for its replicas per attempt; less than a request may take."""


async def run_and_wait(
    client: Redis, script: AsyncScript, keys: Sequence[str], args: Sequence[Any], *, replicas: int
) -> tuple[list[bytes], str]:
    """Runs ``script`` and returns its answer, and why fewer than ``replicas`` have its writes; empty when they do.
    Raises the script's own error.
    """
    answer, have = await _send(client, script, keys, args, replicas)
    if isinstance(answer, NoScriptError):
        script.sha = await client.script_load(script.script)
        answer, have = await _send(client, script, keys, args, replicas)
    if isinstance(answer, ResponseError):
        raise answer
    if isinstance(have, ResponseError):
        return answer, f"the store refuses WAIT ({have})"
    return answer, "" if have >= replicas else f"{have} of {replicas} replicas have it after {WAIT_MS} ms"


async def _send(client: Redis, script: AsyncScript, keys: Sequence[str], args: Sequence[Any], replicas: int) -> Any:
    async with client.pipeline(transaction=False) as pipeline:
        pipeline.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
        pipeline.execute_command("WAIT", replicas, WAIT_MS)
        return await pipeline.execute(raise_on_error=False)
