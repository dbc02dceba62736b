"""The git repository around a folder: what git knows of it, its settings, its namespace. CLI, SDK and MCP use it."""
