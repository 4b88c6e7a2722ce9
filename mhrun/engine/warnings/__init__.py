"""The warnings about a method, in words, from what its summary and draws show."""
