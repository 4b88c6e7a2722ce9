"""Maclaurin & Adams (2015): Firefly Monte Carlo."""
