"""The documents dibs speaks: requests in, replies out, and the one table of codes. The same for HTTP and embedded."""
