"""The durable log on Redis: append, tail, leadership, snapshots. The only package that talks to Redis."""
