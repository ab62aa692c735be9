"""The control plane: one asyncio program; any number run, one leads."""
