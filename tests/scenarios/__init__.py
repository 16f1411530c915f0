"""Whole stories: an overload, a lost worker, a rollout."""
