"""Tests, by what they need: nothing (unit, property, replay, architecture), processes, an engine, a browser."""
