"""A call of `mhrun.sample`: its arguments, its folder, its steps and its warnings."""
