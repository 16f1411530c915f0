"""The files under ``slo/``: read from, and written into.

Question answered: what do the objectives' files say, and are the rules, tests, dashboards, edges and scaler inputs
that follow from them the ones that are committed? Theory of operation: :mod:`~service.rulebook.sources` reads what
people write (objectives per tier, window plans) into the values of ``service.slo``; :mod:`~service.rulebook.book`
makes all other files from these, as texts by path, so that writing and comparing are the same computation.

Inputs: YAML files under one folder. Invariants: every fault of all files is told at once, with its path and line; the
same sources give the same bytes.
It refuses to know: gateways, requests, and whether Prometheus has loaded anything.
"""
