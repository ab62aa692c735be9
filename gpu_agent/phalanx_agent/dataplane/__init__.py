"""The agent's data plane: one thread that relays calls between clients, keepers and the other nodes of a gang."""
