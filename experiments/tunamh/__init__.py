"""Zhang, Cooper & De Sa (2020): asymptotically optimal exact minibatch Metropolis-Hastings."""
