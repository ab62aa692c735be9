"""The page: JSON, server-sent events and static files. Reads only."""
