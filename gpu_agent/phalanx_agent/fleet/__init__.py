"""A fleet of played nodes in one process: for the page, the scheduler and demonstrations. Nobody's code runs on it."""
