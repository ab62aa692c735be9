"""Placement of gangs. Pure."""
