"""The two ways to ask dibs: a store opened in this process, and a server over HTTP. Both give the same answers."""
