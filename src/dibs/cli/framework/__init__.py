"""How a command is declared, parsed, helped and answered. Commands are in `commands`."""
