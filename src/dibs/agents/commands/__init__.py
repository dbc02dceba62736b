"""Commands of coding agents, git hooks and GitHub issues."""
