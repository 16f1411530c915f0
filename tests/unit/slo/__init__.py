"""Unit tests of what decides about budgets; moments are plain numbers."""
