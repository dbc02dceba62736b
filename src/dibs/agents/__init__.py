"""dibs for coding agents: the MCP server, hooks, the skill, issue trackers. It needs the standard library only."""
