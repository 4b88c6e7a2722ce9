"""Models: a log-prior and a per-datum log-likelihood. One model per file."""
