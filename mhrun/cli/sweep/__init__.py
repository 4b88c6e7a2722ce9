"""``mhrun -m``: a run for each value of the swept settings, through Hydra's launchers."""
