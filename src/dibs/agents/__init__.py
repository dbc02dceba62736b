"""Doors for agents: the MCP server and the skill.

shapes      what a tool takes and what it answers, typed; the schemas that clients see are made from it
words       from what the SDK gives or raises to such an answer, with the sentence a model can act on
desk        what the tools ask of dibs, proven by a lease id
keeper, kept  the same for one connection that lives: its claims are kept in a session, and let go when it ends
tools       the tools: name, description, what each does
resources   a job's state and history, by URI
mcp         the server of the `mcp` SDK around all that
stdio       `dibs mcp`
skills      the skill, and putting it where an agent finds it

Only `mcp`, `stdio`, `shapes`, `tools` and `resources` need the `mcp` extra.
"""
