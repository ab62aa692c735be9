"""The other side of each comparison, each in a process of its own."""
