"""The addresses of the server, a module for each section: its operations, declared, and their handlers."""
