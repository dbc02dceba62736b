"""dibs over HTTP. Importing this package imports nothing; `server/run.py` starts a server."""
