"""A paper's claims: their rules, their verdicts, and what was recorded of them."""
