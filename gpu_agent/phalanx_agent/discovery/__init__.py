"""What this node has: one file per kind of fact."""
