"""Readers of what other tools print: each turns one format into the model, and says what it could not read."""
