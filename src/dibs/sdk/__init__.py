"""The Python SDK. Programs import it as `dibs`; what is public is listed in `dibs/__init__.py`.

answers     what comes back, typed: a lease, how a job stands, an event; and which exception a refusal is
operations  every question as a flow without I/O, asked by both faces
hold        what is held: its leases, its deadline, when to renew, whether it is lost. No I/O, no threads
client, claim, session          the face for threads
async_client, async_claim, async_session, async_doors      the face for event loops, with the same names
locks, jobs, exclusive, fence   shapes that people know, built on the faces
"""
