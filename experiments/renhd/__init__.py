"""Luo, Zhang, Yang & Wang (2020): replica exchange with Nosé-Hoover dynamics."""
