"""The engine loops, records and saves. It contains no algorithm."""
