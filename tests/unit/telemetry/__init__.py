"""Unit tests of ``service.telemetry``."""
