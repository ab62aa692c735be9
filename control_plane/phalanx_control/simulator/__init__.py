"""What the scheduler would do: the same code as live, in virtual time, on a trace of jobs and a fleet on paper."""
