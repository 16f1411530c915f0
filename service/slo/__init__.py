"""Budgets: decides from counted events and offered demand how much capacity and admission an objective needs.

Like ``flow`` this room is sans-IO: no clock, no chance, no logging, no input or output. Every moment is an argument.

* ``forecast`` foresees demand by its trend and by the same time of earlier days.
* ``scaling`` decides how many workers a pool needs, with its reasons in words.
"""
