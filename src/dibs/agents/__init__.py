"""The tools of agents: the MCP server (tools.py first), the skill, hooks, trackers. It needs the standard library
only."""
