"""The queue: who waits for a job, in which order, and whether the wait can end."""
