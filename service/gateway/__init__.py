"""The HTTP edge: who asks, for what, and the answer in the caller's own dialect.

Inference routes are raw ASGI callables over :class:`~service.gateway.exchange.Exchange`, which writes straight to the
socket; everything else (models, health, status) is a small FastAPI application. One guard stands before both, so a
route that nobody thought of is refused without a key. Bodies are bounded before they are buffered.
It refuses to know: workers' addresses, queue order, tiers' policy.
"""
