"""What a service needs beside claims: tokens, webhooks and their deliveries."""
