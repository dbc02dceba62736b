"""OctoStore: the replies of a server that speaks its contract and is not dibs."""
