"""Rules: given a contest, does the candidate replace the origin? One per file."""
