"""git repositories and the command line: hooks, staged files, and the namespace of a path."""
