"""The asyncio shell around the core: carries events in, commands out, and bytes through.

Question answered: how does one request travel? :mod:`service.runtime.journey` shows it on one screen;
:mod:`service.runtime.driver` is the single writer of the core; :mod:`service.runtime.relay` moves the answer.
Inputs: the six ports of :mod:`service.runtime.ports`. It compares no loads, tiers or deadlines of the queue: that is
the core's work. It knows the time limits of a relay, since only it sees the bytes.
"""
