"""The simulator: the same core as in the gateway, driven in virtual time against emulated engines.

Theory of operation. A *scenario* is data: tenants with contracts and clients, sizes, machines, faults. An *arm* builds
a *core* (``driver.Core``: events in, commands out); the shipped controller is one, models of peers are others. The
*world* plays the gateway's shell around the core: it sends what is dispatched to workers (``engine``), lets a lagging
``sensor`` read them, and lets clients come, retry and leave. ``measure`` turns what became of every request into
figures, ``bounds`` says what no policy can beat, ``report`` shows both.

Invariants: the same scenario, arm and seed give the same run; every arm is offered the same first attempts; each
request has one ending; the core learns nothing that HTTP would not show (the oracle boundary): sizes of outputs, loads
of engines and faults reach it only as scrapes, first tokens and endings do.

*Trade-offs*: one gateway (several with a shared store are not simulated); no autoscaler; network delays are constant;
tokens between the first and the last are not seen by the core; a client reads as fast as tokens come.
"""
