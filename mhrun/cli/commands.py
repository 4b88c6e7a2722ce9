"""The commands of mhrun and their options."""

from __future__ import annotations

COMMANDS = ("list", "report", "compare", "fetch", "init", "check", "completion", "help")
COMMON = ("--project", "--config-dir", "-cd", "--trust", "--help", "-h")
OPTIONS = {  # options of each command; `run` is a command line without a command
    "run": (*COMMON, "--multirun", "-m", "--dry-run", "--cfg", "-c", "--version", "-V"),
    "compare": (*COMMON, "--reference", "--tolerance", "--equal-cost", "--explain", "--json", "--csv"),
    "init": (*COMMON, "--data", "--outcome", "--network"),
    "check": (*COMMON, "--json"),
}
