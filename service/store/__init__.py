"""What gateways share: quotas, tenants and keys, in Redis or in this process.

Theory of operation. Each kind of shared state has an adapter for Redis and a twin that lives in the process and behaves
alike; the same tests hold both. What is asked of the store has one declared answer for each way in which it can fail
(:mod:`service.domain.condition`), so that nobody who asks it meets an exception of a driver. Scripts run whole inside
Redis, are loaded again when they have been flushed, name keys of one hash slot each, and leave no key without a TTL.
Inputs: reports and keys. It refuses to know: requests, sockets of clients, what an answer is used for.
"""
