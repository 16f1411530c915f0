"""Tests of single modules; no sockets, no waiting."""
