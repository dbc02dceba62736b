"""The Python SDK. Programs import it as `dibs`; what is public is listed in `dibs/__init__.py`.

answers      what comes back, typed: a lease, how a job stands, an event; and which exception a refusal is
operations   every question as a flow without I/O, asked by both faces
hold         what is held, by a claim or a session: its deadline, when to renew, whether it is lost. No I/O, no threads
claims       what clients and sessions take, for both faces; methods gives a method the parameters of another
claim_state  how a claim begins and ends, and what it says about itself, for both faces
client, claim, events              clients, sessions, claims, leaders and events, for threads
async_client, async_claim, async_events  the same for event loops; a program without one does not import them
heart        the threads that renew what is held
async_transport  how an event loop reaches a server or a store
fence        refuses late writes, over each kind of database
default      what needs no client of its own: the one that the environment names; locks are shapes that people know
"""
