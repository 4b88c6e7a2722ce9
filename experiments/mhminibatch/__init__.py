"""Seita, Pan, Chen & Canny (2017): An Efficient Minibatch Acceptance Test for Metropolis-Hastings."""
