"""Unit tests of the simulator (loadtests/sim)."""
