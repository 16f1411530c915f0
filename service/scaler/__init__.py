"""The loop that steers capacity: reads Prometheus, asks ``slo.scaling``, publishes how many workers there should be.

Question answered: how many workers should the pool have now? Theory of operation: at each step of a grid that is the
same for everybody, the last hours are read from Prometheus (``source``, ``queries``), put together as one reading per
step (``history``), and the law is told all of them in order (``steering``). Nothing is remembered between two steps, so
any number of scalers come to the same answer without electing a leader, and one that starts has no past to learn. The
answer is served to Prometheus (``page``), where an autoscaler finds it (``scaled_object``).

Inputs: a Prometheus, and what the tiers promise. Invariants: what is missing, not a number, too old or from only some
of the gateways is not known, and what is not known never lowers the target; with no Prometheus the last answer stands.
It refuses to know: Kubernetes, processes, who carries its answer out.
"""
