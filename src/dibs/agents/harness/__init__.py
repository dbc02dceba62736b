"""Coding agents and the programs that run them (harnesses): who an agent is, what it does, and how it is answered."""
