"""For the operators of a server: metrics, logs, traces, health."""
