"""The pages of ``mhrun --help`` and ``mhrun COMMAND --help``."""

from __future__ import annotations

from mhrun.errors import UserError, nearest

HELP = """\
mhrun runs minibatch Metropolis-Hastings and stochastic-gradient MCMC, and compares the results with the figures,
tables and claims of papers.

  mhrun list [NAME]                           list experiments and runs; with NAME: methods, settings, claims
  mhrun NAME [KEY=VALUE ...]                  run an experiment, then make its report; also experiment=NAME
  mhrun -m NAME KEY=A,B,C ...                 run it for each value (with several keys: all combinations)
  mhrun NAME --dry-run                        estimate time, evaluations, memory and disk (with -m too)
  mhrun compare RUN RUN ... [--reference RUN:METHOD [--tolerance SD]] [--explain|--json|--csv]
                                              compare runs: a folder, an experiment, or the beginning of a digest
  mhrun report [NAME ...]                     rebuild the reports of all runs, or of some
  mhrun fetch [DATASET ...]                   download and verify data sets; without a name, list them
  mhrun init DIR [--network | --data FILE --outcome COLUMN]
                                              create a small project: an example, or a regression on your table
  mhrun check rule=NAME [KEY=VALUE ...]       check the distribution and the contracts of a rule, proposal, pairing,
                                              dynamics, method, or class of yours (check my.Rule)
  mhrun completion bash|zsh|fish              print a script for shell completion
  mhrun COMMAND --help                        help on a command

Settings that every experiment has:
  scale=smoke|quick|paper    a few steps | a minute or two (the default) | the paper's own counts; projects of
                             mhrun init have long instead of paper, and mhrun list NAME shows the scales of NAME
  seed=0                     of the chains
  device=cpu|cuda
  runtime.outputs=outputs    folder of the runs
  runtime.force=true         start again, even if the run exists
  mhrun NAME --cfg job       all settings of an experiment, as it would run

Examples:
  mhrun gmm_tied_means
  mhrun gmm_tied_means lam=0.4 rule@methods.mint.kernel.rule=barker
  mhrun -m gmm_tied_means lam=0.25,0.35,0.45 tau=0.5,0.6

The same settings find the same run again: finished methods are not repeated, and interrupted ones (Ctrl-C, a kill, a
power cut) resume. Options:
  -m, --multirun     a sweep; hydra/launcher=joblib|slurm|ray runs its jobs in parallel
  --cfg job          show the settings without running
  --project WHERE    your own experiments, parts and data: a folder as mhrun init writes it, or an installed package
                     with conf/ in it; its Python files are trusted
  --config-dir DIR   YAML files from someone else; nothing is trusted
  --trust PACKAGE    with --config-dir: allow configurations to name classes of this package or Python file
  --json             for check: print the verdicts as JSON
  --version, --help
"""

_OWN = "  --project WHERE, --config-dir DIR    your experiments and parts too (mhrun --help)\n"

PAGES = {
    "list": f"""\
mhrun list [NAME ...] [runtime.outputs=FOLDER]
mhrun list methods

Without a name: one line per experiment, by paper, with the time of its methods at scale=paper, the claims that the
project's recorded runs reproduce, and the status of your newest run. With a name: its methods, settings, runs, and
claims with the recorded verdicts and those of your runs. The second form: every method, in a line.

  mhrun list
  mhrun list gmm_tied_means

{_OWN}""",
    "report": """\
mhrun report [NAME ...] [runtime.outputs=FOLDER]

Rebuilds the reports of all complete runs and sweeps, or of the named ones, from the traces.
A name is an experiment (all its runs and sweeps), the folder of a run or sweep, or the beginning of a run's digest.
A report that fails prints one line, and the others are made.

  mhrun report
  mhrun report gmm_tied_means
  mhrun report 30382649
""",
    "compare": """\
mhrun compare RUN[:METHOD] ... [--reference RUN:METHOD [--tolerance SD]] [--equal-cost[=EVALUATIONS]]
                           [--explain|--json|--csv] [runtime.outputs=FOLDER]

Prints R-hat, effective sample size, cost, and distance from a reference, a line for each method, and writes a page.
A run is a folder, an experiment (its newest complete run, with --project the newest of that project), or the
beginning of a digest.

  mhrun compare gmm_tied_means --reference gmm_tied_means:tempered_mcmc
  mhrun compare 30382649 4f1c22aa

  --reference RUN:METHOD    measure distances from the draws of this method
  --tolerance SD            agree if every difference is below so many posterior standard deviations, such as 0.1
  --equal-cost[=EVALUATIONS]  use the first draws of each method, which cost so many evaluations; without a
                            number, as many as the method with the least
  --explain                 say what each column is
  --json, --csv             print the numbers as JSON or CSV
""",
    "fetch": """\
mhrun fetch [DATASET ...] [runtime.data_dir=FOLDER]

Downloads data sets from their publishers and verifies them by checksum; without a name, lists them.

  mhrun fetch mnist
""",
    "init": """\
mhrun init DIR
mhrun init DIR --network
mhrun init DIR --data FILE [--outcome COLUMN] [KEY=VALUE ...]

Creates a small project, to be adapted: a model, a data file and an experiment. With --network, the model is a PyTorch
module, a small convolutional network, and cyclical SGHMC is compared with a deep ensemble. With a table (.csv, .tsv,
.txt, .parquet), the model fits its columns: logistic regression for an outcome with two values, softmax regression for
more categories, else linear regression with normal errors, or Poisson regression of counts with model=poisson, and
binomial regression of successes with model=binomial trials=COLUMN.
Numerical features are standardised, and priors are printed.

  mhrun init mine
  mhrun --project mine robust scale=smoke

  mhrun init net --network
  mhrun --project net digits scale=smoke

  mhrun init own --data rows.csv --outcome y
  mhrun --project own rows

  --network           a network in place of a regression
  --data FILE         the table, which is copied into DIR
  --outcome COLUMN    what is predicted; by default the last column
  model=poisson       logistic, softmax, linear, poisson or binomial, in place of the one for the outcome's values
  categorical=[a,b]   columns that are categories; any setting of data=table, such as exposure=days or missing=drop
  groups=[a,b]        columns of groups, such as schools or patients: a multilevel model, in which each has an effect
  form=centred        the effects as parameters themselves, or noncentred: standardised; without it, centred where
                      groups differ clearly
  baselines.a=VALUE   the value of a category that the others are compared with, or the value of the outcome that is 0;
                      without it, the first in sorted order
  missing_values.a=[VALUE]  texts or numbers that stand for missing values of a column, or of all without .a; with
                      missing=drop their rows are left out
""",
    "check": f"""\
mhrun check rule=NAME|proposal=NAME|pairing=NAME|dynamics=NAME|method=NAME|CLASS [KEY=VALUE ...] [--json]

Compares draws with closed forms and quadrature, tests detailed balance, and recounts costs. A correct kernel fails
with probability 1e-4: by p below 1e-6 in one check, or below 1e-3 twice, the second time in 5 times as many chains
(a p is of all statistics of its line together). The exit status is 1 if a check fails, or has no power because
chains hardly move.

  mhrun check rule=barker
  mhrun check dynamics=sghmc dynamics.friction=0.5 chains=40000    # a setting of the part has its kind before it
  mhrun check rule=barker 'checks=[invariance,balance]'
  mhrun check my.Rule power=0.5 --project mine                     # a class that is given by name takes them bare
  mhrun check experiment=mine --project mine     # is the model and are its methods right?

  chains=8000     chains of the checks that are judged by draws; more see smaller errors
  step_size=      of all checks; if not given, the largest with a fair acceptance, or stable
  checks=[...]    only these
  n=2000, m=100   data, and data in a minibatch, of the checks with minibatches; m is also that of a class by name
  seed=0
  --json          print the verdicts as JSON

With experiment=NAME: parameters are drawn from the model's priors, data by its function simulate, and the ranks of the
parameters among the draws of each method must be uniform (simulation-based calibration).

  replications=100   data sets; at least 20
  n=500              data in each
  steps=, warmup=    of each method; at most 5000 if they are not given
{_OWN}""",
    "completion": """\
mhrun completion bash|zsh|fish

Prints a script with which a shell completes commands, experiments, settings and replacements of parts.

  source <(mhrun completion bash)                                     # in ~/.bashrc
  source <(mhrun completion zsh)                                      # in ~/.zshrc, after compinit
  mhrun completion fish > ~/.config/fish/completions/mhrun.fish
""",
    "help": """\
mhrun help [COMMAND]

Shows help on a command; without one, the main page.
""",
}


def page(command: str) -> str:
    """Return the help page of a command; for an empty name, the main page.

    Raises:
        UserError: an unknown command.
    """
    if not command or command == "run":
        return HELP
    if command not in PAGES:
        raise UserError(f"There is no command '{command}'.{nearest(command, PAGES)} mhrun --help shows all.")
    return PAGES[command]
