"""Tools for tests of dibs, and for tests of code that uses dibs.

    clients.py    MemoryDibs, memory_client: dibs in memory, for tests of your own code
    fixtures.py   memory_dibs, a fixture for pytest
    clock.py      ManualClock: time that moves when you say so
    faulty.py     FaultyStore: a store that fails when you say so
    contract.py   StoreContract: what every store must do
    model.py      a dumb model of the rules, to check the real ones against
    scenario.py   short text scripts, played against the rules
    history.py    what events and clients' logs say about the promises
    processes.py  the command and a server as real processes, to be killed and paused

Subclass StoreContract to test a store of your own; it needs pytest.
"""
