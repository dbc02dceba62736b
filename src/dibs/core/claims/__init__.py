"""The asks of callers: a job, several jobs, to keep it, to let it go, to give up; sessions and closures."""
