"""dibs: one owner per job for distributed workers and agent swarms."""
