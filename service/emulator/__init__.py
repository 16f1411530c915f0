"""An emulated vLLM worker.

Question it answers: how would a vLLM worker behave on this wire, at this load, with this fault?

Three layers, none of which needs the ones after it:

* the *engine* (``engine``, ``scheduler``, ``sequence``, ``blocks``, ``stepcost``, ``speculation``, ``steps``,
  ``frontend``, ``profiles``): a pure model of one continuous-batching engine and the HTTP process before it. It has no
  clock and no input or output; the simulator drives the same class in virtual time;
* the *wire* (``intake``, ``bodies``, ``fields``, ``template``, ``script``, ``writing``, ``answers``, ``chat``,
  ``completions``, ``responses``, ``messages``, ``refusals``, ``exposition``, ``tally``): what vLLM 0.32/0.33 reads and
  writes, held side by side with a real 0.32.0 by ``tests/conformance/worker_contract.py``;
* the *server* (``server``, ``worker``, ``routes``, ``generation``, ``pump``, ``connection``, ``exchange``, ``faults``,
  ``delivery``, ``inspection``, ``config``, ``profile_file``): sockets, the real clock, faults on demand, a log of what
  arrived.

Invariants: tokens delivered equal tokens counted in ``usage`` and in ``/metrics``; an abandoned request leaves the
engine within one step; KV blocks are never lost.

It refuses to know the gateway: it imports nothing of this project but itself.
"""
