"""Adapters to vLLM servers: which there are, how they are, and connections to them.

Question answered: which worker processes can be given work at this moment? :mod:`discovery` says where workers should
be, :mod:`monitor` asks each of them and tells the core, :mod:`health` judges what they answered, :mod:`scrape` reads
their metrics page. Inputs: addresses or a name to resolve, the workers' own HTTP pages, the gateway's own view of its
traffic. Invariants: a worker is a process, not an address (:mod:`identity`); what is not known is ``None``; one worker
that hangs delays no other. It refuses to know tiers, queues and tenants, and whether an operator drains a worker: the
monitor never says anything about drains, so it cannot override one.
"""
