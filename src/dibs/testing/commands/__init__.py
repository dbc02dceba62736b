"""Commands that check dibs: a race on a real store, and a simulation."""
