"""Decisions about calls, gangs, nodes and leases. Pure: commands in, events out."""
