"""Unit tests of the asyncio shell."""
