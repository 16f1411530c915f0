"""Is the emulator honest? Measures a real engine, fits the emulator's step model to it, and holds the two side by side.

* ``plan`` says what is asked of the engine and when: the *sweep* the model is fitted to (batch x prompt x reuse), and the
  *held-out* runs it is judged by (other mixes, other lengths, Poisson arrivals from other seeds);
* ``texts`` writes prompts of a wanted length and learns from the engine's own tokenizer what they are;
* ``client`` offers a run, open loop, and stamps what comes back; ``machine`` says who else used the processors meanwhile;
  ``engine`` starts the real engine;
* ``replay`` plays the same run through the emulator's engine in virtual time;
* ``linear`` finds a first set of parameters by least squares, ``fit`` improves it until replays agree with measurements;
* ``verdict`` compares, ``report`` shows, ``run`` is the command.

Invariants: nothing of a held-out run is seen by the fit; a prediction is made from what was sent and when, never from
what came back; every request counts, and a request that failed makes the run void.

It refuses to know the gateway.
"""
