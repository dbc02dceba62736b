"""The MCP server: its tools (`tools.py` first), what they ask and answer, and the two ways to it, stdio and HTTP."""
