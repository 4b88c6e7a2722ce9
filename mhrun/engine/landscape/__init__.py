"""The log posterior as a pilot finds it: its modes and curvature, and what chains that begin there may miss.

`surface` is the log posterior on a part of the data, `modes` where ascents end, `curvature` minus the Hessian, and
`laplace` a mode with its normal density and its mass. `explore` looks for what makes chains that begin at the modes
miss a part of the posterior: modes with hardly any mass (`low_modes`, `necks`), directions without an end
(`impropriety`), mass far away (`rays`, `heavy_tails`) and modes where no chain begins (`known_modes`). `all_data`
compares a part of the data with all of them, and `normality` the posterior with its normal approximation.
"""
