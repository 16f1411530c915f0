"""Unit tests of the adapters to vLLM servers; pages are captured from real ones or made up."""
