"""Unit tests of the vocabulary."""
