"""The simulator: the same core as in the gateway, driven in virtual time."""
