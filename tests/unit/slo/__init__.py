"""Tests of the decisions about budgets."""
