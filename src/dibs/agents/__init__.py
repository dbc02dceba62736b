"""What agents use: the MCP server and the skill.

answers   the fields that a tool takes and answers, each declared once
words     turns what the SDK returns or raises into an answer, with a sentence a model can act on
backend   what the tools ask of dibs; over stdio it keeps the claims of a connection in one session
tools     the tools: name, description, and what each does
mcp       the methods of the protocol: tools and resources, the same for every transport
stdio     `dibs mcp`: the protocol over standard input and output
skills    the skill, and the command that installs it where an agent finds it

All of this needs the standard library only.
"""
