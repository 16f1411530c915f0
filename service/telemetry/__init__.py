"""Figures and logs, folded from events and commands.

Question answered: how is the service doing? Theory of operation: :class:`~service.telemetry.recorder.Recorder` is a
fold over what the core was told and ordered (``observe``) and over requests that ended (``settle``). It holds plain
numbers and is given every moment, so the simulator folds the same figures in virtual time.
:class:`~service.telemetry.exposition.Exposition` turns the numbers into Prometheus' text when somebody asks, and reads
what is a state rather than a sum (queue, workers, connections) from one snapshot at that moment.

Inputs: settled requests, events with commands, a snapshot at scrape time, turns of the event loop.
Invariants: counters never decrease; every settled request is counted under exactly one outcome; no text of a client
becomes a label, so the number of series follows from tiers and workers alone. One asyncio process per replica: there
is no multiprocess mode, and replicas are summed by Prometheus.
It refuses to know: tenants, models, request ids, and what a figure means for a contract (that is the ledger's).
"""
