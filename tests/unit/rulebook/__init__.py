"""Room: mirrors ``service/rulebook``."""
