"""Unit tests of the flow core; moments are plain numbers."""
