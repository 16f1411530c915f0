"""Unit tests of the command line; commands are called in this process, nothing is started."""
