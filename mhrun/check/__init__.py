"""The project's own laws as a service: whatever moves chains is measured against what it should do."""
