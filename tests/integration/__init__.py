"""Tests that start real processes and open sockets."""
