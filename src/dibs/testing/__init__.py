"""Tools for tests of code that uses dibs, and for tests of stores.

    clients.py    MemoryDibs, memory_client: dibs in memory, for tests of your own code
    fixtures.py   memory_dibs, a fixture for pytest
    clock.py      ManualClock: time that moves when you say so
    faulty.py     FaultyStore: a store that fails when you say so
    contract.py   StoreContract: what every store must do

Subclass StoreContract to test a store of your own; it needs pytest.
"""
