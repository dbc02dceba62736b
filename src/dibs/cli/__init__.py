"""The command line. Every call is a new process, so a command imports only the modules that it needs."""
