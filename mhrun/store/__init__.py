"""Run folders: what is written, how it is found again, and what survives a kill."""
