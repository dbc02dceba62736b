"""What the command line knows of git repositories: hooks, staged files, whose namespace a path is in."""
