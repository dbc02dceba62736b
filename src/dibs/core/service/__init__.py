"""A service's own needs beside claims: tokens, webhooks and their deliveries."""
