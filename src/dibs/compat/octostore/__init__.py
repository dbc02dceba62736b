"""OctoStore: what a server of its kind, which is not dibs, says of its locks."""
