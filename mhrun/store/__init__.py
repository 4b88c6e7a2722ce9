"""Run folders: layout, identity, and recovery after a kill."""
