"""Cornish et al. (2019): scalable Metropolis-Hastings."""
