"""Declares and parses commands, and makes their help and their answers. The commands are in `commands`."""
