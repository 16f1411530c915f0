"""Random histories under a referee's eye."""
