"""Connections and requests: sockets, TLS, the protocol, who asks, what a request says and how it is answered."""
