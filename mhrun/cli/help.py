"""The pages of ``mhrun --help`` and ``mhrun COMMAND --help``."""

from __future__ import annotations

from mhrun.errors import UserError, nearest

HELP = """\
mhrun runs Metropolis-Hastings with minibatches and stochastic-gradient MCMC, and puts the papers'
figures, tables and claims beside what it finds.

  mhrun list [NAME]                           what experiments there are, what has been run; of one: methods, settings
  mhrun NAME [KEY=VALUE ...]                  run an experiment, then make its report; also experiment=NAME
  mhrun -m NAME KEY=A,B,C ...                 run it for each value (several keys: all combinations)
  mhrun NAME --dry-run                        what it would take: time, evaluations, memory, disk (with -m too)
  mhrun compare RUN RUN ... [--reference RUN:METHOD] [--json|--csv]
                                              runs side by side: a folder, an experiment, the beginning of a digest
  mhrun report [NAME ...]                     make the reports again, of all runs or of some experiments
  mhrun fetch [DATASET ...]                   download and verify data sets; without a name, list them
  mhrun init DIR                              write a small project of your own to begin from: model, data, experiment
  mhrun check rule=NAME [KEY=VALUE ...]       is it right? checks of distribution and bookkeeping on a rule, proposal,
                                              pairing, dynamics, method, or class of yours (check my.Rule)
  mhrun completion bash|zsh|fish              what lets a shell complete commands, experiments, settings and parts
  mhrun COMMAND --help                        more on one of these

Settings that every experiment has:
  scale=smoke|quick|paper    seconds | a minute or two (the default) | the paper's own counts
  seed=0                     of the chains
  device=cpu|cuda
  runtime.outputs=outputs    where runs are kept
  runtime.force=true         begin anew, even if the run is there
  mhrun NAME --cfg job       all settings of an experiment, as it would run

Examples:
  mhrun gmm_tied_means
  mhrun gmm_tied_means lam=0.4 rule@methods.mint.kernel.rule=barker
  mhrun -m gmm_tied_means lam=0.25,0.35,0.45 tau=0.5,0.6

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

_OWN = "  --project WHERE, --config-dir DIR    experiments and parts of your own too (mhrun --help)\n"

COMMANDS = {
    "list": f"""\
mhrun list [NAME ...] [runtime.outputs=FOLDER]

Without a name: every experiment in a line, by paper, with the time its methods take at scale=paper and where
its newest run stands. With a name: its methods, settings, claims and runs.

  mhrun list
  mhrun list gmm_tied_means

{_OWN}""",
    "report": """\
mhrun report [NAME ...] [runtime.outputs=FOLDER]

Makes the reports again from the traces: of all complete runs and sweeps, or of those of some experiments.
A report that fails leaves one line, and the others are made.

  mhrun report
  mhrun report gmm_tied_means
""",
    "compare": """\
mhrun compare RUN[:METHOD] ... [--reference RUN:METHOD] [--json|--csv] [runtime.outputs=FOLDER]

Prints R-hat, effective sample size, cost, and distance from a reference, a line for each method, and writes a page.
A run is a folder, an experiment (its newest complete run), or the beginning of a digest.

  mhrun compare gmm_tied_means --reference gmm_tied_means:tempered_mcmc
  mhrun compare 30382649 4f1c22aa

  --reference RUN:METHOD    measure distances from the draws of this method
  --json, --csv             print the numbers as JSON or CSV
""",
    "fetch": """\
mhrun fetch [DATASET ...] [runtime.data_dir=FOLDER]

Downloads data sets from their publishers and verifies them by checksum; without a name, lists them.

  mhrun fetch mnist
""",
    "init": """\
mhrun init DIR

Writes a small project: a model in Python, a data file and an experiment, to change into your own.

  mhrun init mine
  mhrun --project mine robust scale=smoke
""",
    "check": f"""\
mhrun check rule=NAME|proposal=NAME|pairing=NAME|dynamics=NAME|method=NAME|CLASS [KEY=VALUE ...] [--json]

Compares draws with closed forms and quadrature, tests detailed balance, and recounts costs. A correct kernel fails
with probability 1e-4. The exit status is 1 if a check fails.

  mhrun check rule=barker
  mhrun check rule=barker 'checks=[invariance,balance]'
  mhrun check my.Rule --project mine

  checks=[...]    only these
  --json          print the verdicts as JSON
{_OWN}""",
    "completion": """\
mhrun completion bash|zsh|fish

Prints what lets a shell complete commands, experiments, settings, and parts with the places they go to.

  source <(mhrun completion bash)                                     # in ~/.bashrc
  source <(mhrun completion zsh)                                      # in ~/.zshrc, after compinit
  mhrun completion fish > ~/.config/fish/completions/mhrun.fish
""",
    "help": """\
mhrun help [COMMAND]

Shows what a command does; without one, all commands.
""",
}


def page(command: str) -> str:
    """Return the help page of a command; for an empty word, the main page.

    Raises:
        UserError: an unknown command.
    """
    if not command or command == "run":
        return HELP
    if command not in COMMANDS:
        raise UserError(
            f"There is no command '{command}'.{nearest(command, COMMANDS)} mhrun --help shows all."
        )
    return COMMANDS[command]
