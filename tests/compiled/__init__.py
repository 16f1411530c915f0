"""The compiled form passes the tests of its sources."""
