"""What ``mhrun --help`` says."""

HELP = """\
mhrun runs Metropolis-Hastings with minibatches and stochastic-gradient MCMC, and puts the papers'
figures, tables and claims beside what it finds.

  mhrun list                                  what experiments there are, and what has been run
  mhrun experiment=NAME [KEY=VALUE ...]       run one, then make its report
  mhrun -m experiment=NAME KEY=A,B,C ...      run it for each value (several keys: all combinations)
  mhrun experiment=NAME --dry-run             what it would take: time, evaluations, memory, disk (with -m too)
  mhrun compare RUN RUN ... [--reference RUN:METHOD] [--json|--csv]
                                              runs side by side: a folder, an experiment, the beginning of a digest
  mhrun report [NAME ...]                     make the reports again, of all runs or of some experiments
  mhrun fetch [DATASET ...]                   download and verify data sets; without a name, list them
  mhrun init DIR                              write a small project of your own to begin from: model, data, experiment
  mhrun check rule=NAME [KEY=VALUE ...]       is it right? checks of distribution and bookkeeping on a rule, proposal,
                                              pairing, dynamics, method, or class of yours (check my.Rule)

Settings that every experiment has:
  scale=smoke|quick|paper    seconds | a minute or two (the default) | the paper's own counts
  seed=0                     of the chains
  device=cpu|cuda
  runtime.outputs=outputs    where runs are kept
  runtime.force=true         begin anew, even if the run is there
  mhrun experiment=NAME --cfg job             all settings of an experiment, as it would run

Examples:
  mhrun experiment=gmm_tied_means
  mhrun experiment=gmm_tied_means lam=0.4 rule@methods.mint.kernel.rule=barker
  mhrun -m experiment=gmm_tied_means lam=0.25,0.35,0.45 tau=0.5,0.6

The same settings find the same run again: done is done, and what was interrupted (Ctrl-C, a kill, a
power cut) goes on from where it was. Options:
  -m, --multirun     a sweep; hydra/launcher=joblib|slurm|ray runs its jobs beside each other
  --cfg job          show the settings, do not run
  --project WHERE    a folder of your own, with conf/ and the Python and data files that it names, or an installed
                     package with conf/ in it; its Python is trusted
  --config-dir DIR   YAML files as in conf/, and Python files beside them, which are not trusted by themselves
  --trust PACKAGE    let configurations name classes of this package or file of yours
  --json             of check: the verdicts as JSON
  --version, --help
"""
