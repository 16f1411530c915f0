"""Is the emulator honest? Measures a real engine, fits the emulator's model to it, and holds the two side by side.

* ``plan`` says what is asked of the engine and when: the *sweep* the model is fitted to (batch x prompt x reuse), and
  the *held-out* runs it is judged by (other mixes, other lengths, Poisson arrivals from other seeds);
* ``texts`` writes prompts of a wanted length and learns from the engine's own tokenizer what they are;
* ``client`` offers a run, open loop, and stamps what comes back; ``machine`` keeps it from being starved and says who
  else used the processors meanwhile; ``engine`` starts the real engine;
* ``replay`` plays the same run through the emulator's engine in virtual time;
* ``linear`` finds a first set of parameters by least squares, ``fit`` improves it until replays agree with what was
  measured;
* ``verdict`` compares, ``report`` shows, ``session`` measures one run after another, ``run`` is the command.

Invariants: nothing of a held-out run is seen by the fit; a prediction is made from what was sent and when, never from
what came back; every held-out request counts, and a run in which one failed is told with the verdict and spoils it.

It refuses to know the gateway.
"""
