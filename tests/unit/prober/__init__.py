"""Room: mirrors ``service/prober``."""
