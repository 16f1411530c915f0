"""How a vLLM worker is started: which one, with what command line, and whether this machine can carry it.

* ``profile`` is the typed description of a worker (model, layout, KV cache, valves); ``profiles`` holds the two the
  project ships: ``m3.1-flash`` for production, ``cpu-small`` for machines without a GPU.
* ``speculation`` is the part of a profile that says how tokens are guessed ahead.
* ``command`` turns a profile into an argument vector and an environment. It is the only builder of vLLM command lines;
  every line it can produce is fed to vLLM's real argument parser in ``tests/engine``.
* ``memory`` is the arithmetic of weights and KV cache; ``preflight`` judges a machine against a profile, purely, over
  the facts ``probe`` gathers; ``fallback`` judges a started worker against what was asked of it.
* ``cache`` builds large things once per recipe, ``environment`` and ``build_step`` fill them; ``cpu_engine`` makes the
  CPU engine and its small model with them.

``engine_side`` holds scripts for the engine's own Python. It is not a package: nothing here imports it, and nothing in
this room imports vllm or torch. The room refuses to know about gateways, requests and tenants.
"""
