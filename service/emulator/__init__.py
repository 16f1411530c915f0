"""An emulated vLLM worker.

Question it answers: how would a vLLM worker behave on this wire, at this load, with this fault?

Three layers, each usable without the next:

* the *engine* (``engine``, ``blocks``, ``stepcost``, ``speculation``, ``profiles``): a pure model of one continuous-
  batching engine. It has no clock and no input or output; the simulator drives the same class in virtual time;
* the *wire* (``intake``, ``template``, ``writing``, ``chat``, ``completions``, ``responses``, ``messages``,
  ``refusals``, ``exposition``): what vLLM 0.32/0.33 reads and writes, byte for byte where a client can see it;
* the *server* (``connection``, ``pump``, ``worker``, ``routes``, ``faults``, ``delivery``, ``inspection``): sockets,
  the real clock, faults on demand, a log of what arrived.

Invariants: tokens delivered equal tokens counted in ``usage`` and in ``/metrics``; an abandoned request leaves the
engine within one step; KV blocks are never lost.

It refuses to know the gateway: it imports nothing of this project but itself.
"""
