"""Errors that mean a fault in our own code, never in what came from outside."""


class InvariantError(Exception):
    """An event that cannot happen in this state, for example the end of a permit that nobody holds.

    Raised by the core and nowhere caught on purpose: the request that caused it ends as a gateway fault, and the
    message names the request or worker so that the journal around it can be read.
    """
