"""The settings of a command: overrides, composition with Hydra, resolution, and checks."""
