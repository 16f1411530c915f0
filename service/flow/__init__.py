"""The sans-IO core that decides about requests: admit, queue, dispatch, refuse, take back.

Theory of operation. :class:`~service.flow.controller.FlowController` takes *events with a moment* and returns
*commands*; it says when it wants to be woken next and gives an immutable snapshot of its state. It has no clock, no
chance of its own (a seeded generator is passed in), no logging, no input or output. Two shells drive it: the asyncio
driver of the gateway and the virtual-time driver of the simulator; neither compares loads or deadlines itself.

Inputs: requests with sizes and deadlines, workers that come, go, get sick or busy, permits that end.
Invariants: each request gets at most one permit at a time and exactly one ending; a worker never holds more permits
than its limit; no eligible worker with room stays idle while a request that it may serve waits; every waiting request
leaves the queue by its deadline.
It refuses to know: sockets, HTTP, prompts, tenants' keys.
"""
