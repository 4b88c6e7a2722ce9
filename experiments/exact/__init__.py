"""Exact Metropolis-Hastings from minibatches: what draws cost, and whether they follow the posterior."""
