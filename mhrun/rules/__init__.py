"""Rules: accept or reject the candidate of a contest. One per file."""
