"""The Python SDK. Programs import it as `dibs`; what is public is listed in `dibs/__init__.py`.

answers     what comes back, typed: a lease, how a job stands, an event; and which exception a refusal is
operations  every question as a flow without I/O, asked by both faces
hold        what is held: its leases, its deadline, when to renew, whether it is lost. No I/O, no threads
session_hold  the same of a session: its claims, and what it still has to give back
held        how a claim begins and ends, and what it says about itself; claims has the ways to claim. For both faces
ownership   who acquired what through a lock that threads or tasks share
client, claim, session, heart                                  the face for threads
async_client, async_claim, async_session, async_guard          the face for event loops, with the same names,
async_doors, async_line                                        and how it reaches a server or a store
events, async_events  what happens to jobs, as it happens, for both faces
fence       refuses late writes; drivers is how it speaks to each kind of database
default     the client that the environment names; locks, jobs and exclusive are shapes that people know
"""
