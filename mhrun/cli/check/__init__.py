"""``mhrun check``: correctness checks of parts, and simulation-based calibration of models."""
