"""The agent: one daemon per node; holds no user code and imports no torch."""
