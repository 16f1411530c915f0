"""The HTTP edge: who asks, for what, and the answer in the caller's own dialect.

Inference requests never become ASGI: the listener's parser hands each as an
:class:`~service.gateway.exchange.Exchange` to the corridor, by plain calls, and its answer is written straight to the
socket. Everything else (models, health, status) is a small FastAPI application. One guard stands before both, so a
route that nobody thought of is refused without a key. Bodies are bounded before they are buffered.
It refuses to know: workers' addresses, queue order, tiers' policy.
"""
