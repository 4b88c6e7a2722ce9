"""Prado, Nemeth & Sherlock (2024): Metropolis-Hastings with scalable subsampling."""
