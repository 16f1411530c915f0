"""Tests of the HTTP edge."""
