"""Correctness checks for kernels, dynamics, proposals, pairings and rules."""
