"""Sends a synthetic request per tier through the front door, and says whether the answer was as promised.

Question answered: would a customer be served right now, in a tier that nobody is using? Theory of operation: one key
per tier, each of a tenant that the gateway's configuration calls ``synthetic``, so that what is sent is served like any
other's and excluded from SLA and bills; nothing in the request says that it is a probe. A probe is good if its first
token comes within the tier's promise for short prompts and the stream ends as it should.

Inputs: a gateway's address, keys from the environment, the promises. Invariants: the counters are the prober's own, on
a port of its own; every label set exists from the start; a probe that takes too long is bad, and the next is not sent
before it has ended.
It refuses to know: the gateway's insides, and whether there is enough other traffic to judge by (the alert does).
"""
