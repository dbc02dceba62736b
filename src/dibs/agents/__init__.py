"""What agents use: the MCP server and the skill.

arguments        what a tool takes, typed; the schemas that clients see are made from it
answers          what a tool answers, the same way
words            turns what the SDK returns or raises into such an answer, with a sentence a model can act on
backend          what the tools ask of dibs; each call is proven by a lease id
keeper           one connection's claims, kept in one session and released when the connection ends
connection_session  that session of the connection
kept_claim       one such claim
session_backend  a backend on top of the keeper
tools            the tools: name and description
calls            what each tool does
resources        a job's state and history, by URI
mcp              the server of the `mcp` SDK around all of these
stdio            `dibs mcp`
skills           the skill, and the command that installs it where an agent finds it

Only `mcp`, `stdio`, `arguments`, `answers`, `calls`, `tools` and `resources` need the `mcp` extra.
"""
