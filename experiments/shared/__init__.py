"""What the reports of several papers share."""
