"""The cluster of this machine: store, control plane and agent as child processes of one small supervisor, on loopback.

``ensure()`` joins or starts it, ``running()`` looks, ``down()`` stops it. Standard library only.
"""

from __future__ import annotations

from phalanx.embedded.ensure import Connection, down, ensure, running

__all__ = ["Connection", "down", "ensure", "running"]
