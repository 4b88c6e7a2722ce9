"""Mini-batch Tempered MCMC (Li & Wong 2017)."""
