"""Counters to money. Pure; integers and Decimal, never floats."""
