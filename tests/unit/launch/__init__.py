"""Unit tests of how workers are started: command lines, judgements, caches; vLLM is not needed."""
