"""Load tests and the simulator: they import the service, never the other way round."""
