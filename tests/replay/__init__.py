"""Recorded histories, played again by both shells."""
