"""Tests of the ledger: spool, drain, rollups, reports; a real SQLite file each."""
