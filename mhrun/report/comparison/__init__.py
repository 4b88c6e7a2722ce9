"""Comparisons of runs and traces: rows, distances from a reference, verdicts, figures and the page."""
