"""Where records live. Stores store; they never decide."""
