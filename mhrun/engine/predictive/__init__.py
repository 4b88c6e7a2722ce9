"""The posterior predictive of a trace: means and draws of a prediction, and the density of data."""
