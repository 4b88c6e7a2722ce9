"""Zhang, Li, Zhang, Chen & Wilson (2020): cyclical stochastic-gradient MCMC."""
