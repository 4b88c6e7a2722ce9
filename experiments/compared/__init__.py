"""Every acceptance test on the same posteriors: beyond the papers."""
