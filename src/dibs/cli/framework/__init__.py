"""How commands are declared and parsed, and how their help and answers are made. Commands are in `commands`."""
