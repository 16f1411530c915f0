"""Decisions about budgets, without clock, chance or input and output.

Question answered: what does a request count for, what was promised, how fast is the allowance for failures being spent,
and which rules tell it to Prometheus? Theory of operation: a *verdict* (:mod:`~service.slo.verdict`) says what one
request is for each indicator. An *objective* (:mod:`~service.slo.objective`) says which share of a tier's requests has
to be good by one of them. The *windows* (:mod:`~service.slo.window`) say how fast the rest, the error budget, may be
spent before somebody is called; recording rules and alerts (:mod:`~service.slo.rules`, :mod:`~service.slo.alerts`) are
built from both.

How many workers a pool needs is decided too (:mod:`~service.slo.scaling`): from the demand offered, which is foreseen
by its trend and the same time of earlier days (:mod:`~service.slo.forecast`), and from the budget that burns.

Inputs: what has happened with its moments, tiers, window plans; outputs are values, so that the gateway, the report and
the simulator come to the same figures.
Invariants: ratios are formed from sums of events, never averaged; where nothing happened there is no ratio, not zero.
It refuses to know: YAML, Prometheus' API, clocks, whose request it was.
"""
