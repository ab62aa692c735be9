"""Measured side by side with peers, in one run; never asserted by a test."""
