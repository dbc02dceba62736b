"""git and claims on files: git's own hooks, and what agents do to a checkout by git commands."""
