"""Tests that talk to a real vLLM on the CPU."""
