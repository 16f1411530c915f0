"""Sluice: an SLA-guaranteed inference service.

The house, room by room (imports go down only):

* ``main``: the composition root; the only place that knows both ports and adapters.
* ``neighbours``: part of it: what a gateway shares with others through the store.
* ``cli``: one module per command; thin, no decisions.
* ``rulebook``: the files under ``slo/``: objectives read, rules and what else follows from them written.
* ``settings``: the configuration file as written, checked, and translated into each room's frozen config.
* ``scaler``: how many workers there should be, read from Prometheus and published to whoever starts them.
* ``gateway``: the HTTP edge: authentication, reading and peeking into bodies, answers in the client's dialect.
* ``prober``: a synthetic request per tier through the front door, again and again.
* ``runtime``: the asyncio shell around the core: driver, journey of one request, relay of bytes, accounting.
* ``workers``: adapters to vLLM servers: connections, discovery, health, metrics.
* ``launch``: how a vLLM worker is started: profile, preflight, command line, the CPU engine.
* ``emulator``: an emulated vLLM worker: a pure step model and a server with vLLM's wire.
* ``ledger``: the record that bills are made from: spool, database, rollups, reports. ``record`` and ``clerk`` beside
  the composition root run it: in the gateway, and in a process of its own.
* ``store``: what gateways share, in Redis and as a twin in the process: leases of quota, tenants, keys.
* ``telemetry``: figures and logs, folded from events and commands.
* ``flow``: the sans-IO core that decides about requests.
* ``slo``: what each request counts for, and what that makes of a budget and a month.
* ``domain``: the vocabulary all rooms share.
"""
