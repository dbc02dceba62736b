"""The documents dibs speaks: requests in, replies out, and the one table of codes. The same for HTTP and embedded."""

# The content type of dibs' own clients. It is JSON, under a name that other servers refuse (415) before they do
# anything: OctoStore has the same routes, but gives two workers with one token the same lock.
OWN_TYPE = "application/x.dibs"
