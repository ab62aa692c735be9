"""The state that the log folds into. Pure: no I/O, no clock, no randomness."""
