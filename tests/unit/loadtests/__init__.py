"""Unit tests of the load tools and of the simulator."""
