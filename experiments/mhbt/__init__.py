"""Wu, Wang & Wong (2020): minibatch Metropolis-Hastings with reversible SGLD proposals."""
