"""Decisions about budgets: what a request counts for, what is owed for a month, how fast a budget burns.

Inputs are what has happened, with its moments; outputs are values. Nothing here reads a clock, rolls dice, logs or does
input or output, so that the gateway, the report and the simulator come to the same figures.
"""
