"""A worker, as a script that any version of dibs can run: claims a job, says so, and keeps it until its input ends."""

import sys

import dibs

job, owner, ttl_s, wait_s = sys.argv[1:]
try:
    with dibs.claim(job, owner=owner, ttl=float(ttl_s), wait=float(wait_s)) as claim:
        print("has", claim.fencing_token, flush=True)
        sys.stdin.read()  # the work
        claim.check()
    print("released", flush=True)
except dibs.DibsError as error:
    print("lost", type(error).__name__, error, flush=True)
