"""Unit tests of room ``emulator``: no sockets, no clock."""
