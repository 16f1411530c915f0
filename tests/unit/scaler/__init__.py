"""Unit tests of the scaler: Prometheus is written down, moments are plain numbers."""
