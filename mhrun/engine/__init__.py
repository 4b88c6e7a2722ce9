"""The engine: it loops, records and saves, and knows no algorithm."""
