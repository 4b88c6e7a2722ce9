"""The arena: all acceptance tests on the same posteriors, each tuned for itself, errors against cost."""
