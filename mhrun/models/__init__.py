"""Models: a prior and the log-likelihood of single data. One model per file."""
