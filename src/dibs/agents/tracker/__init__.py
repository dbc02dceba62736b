"""What a tracker says about an issue before its job is granted, and what dibs writes there. Opt-in, per repository."""
