"""The command line. A module is imported by the command that needs it: `dibs claim` is a whole process, every time."""
