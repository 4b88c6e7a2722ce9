"""A SLURM of one machine, for tests: sbatch, srun, sacct and scontrol as submitit calls them.

`install` puts the commands into a folder for the PATH. Tasks of an array run one after the other; a task that is asked
for again with ``scontrol requeue`` before it ends is run again, as SLURM does.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scontrol")
HERE = "SLURM_STAND_IN"  # the folder of what this SLURM knows


def install(folder: Path) -> dict[str, str]:
    """Write the commands, and return what the environment needs to find them."""
    folder.mkdir(parents=True)
    for name in COMMANDS:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {__file__} {name} "$@"\n')
        path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", HERE: str(folder)}


def sbatch(here: Path, script: str) -> int:
    """Take a script, say its number, and leave its tasks to a process of their own."""
    number = 1000 + len(list(here.glob("*.sbatch")))
    kept = here / f"{number}.sbatch"
    kept.write_text(Path(script).read_text())
    subprocess.Popen(
        [sys.executable, __file__, "controller", str(number)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    print(f"Submitted batch job {number}")
    return 0


def controller(here: Path, number: str) -> int:
    """Run the tasks of a job, each again for as long as it is queued again."""
    script = here / f"{number}.sbatch"
    array = re.search(r"^#SBATCH --array=0-(\d+)", script.read_text(), re.MULTILINE)
    for task in [str(k) for k in range(int(array[1]) + 1)] if array else [""]:
        own = {"SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
        if task:
            own |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": task}
        place = here / "_".join(filter(None, (number, task)))
        queued, state = place.with_suffix(".requeue"), place.with_suffix(".state")
        while True:
            queued.unlink(missing_ok=True)
            state.write_text("RUNNING")
            status = subprocess.run(["bash", str(script)], env=os.environ | own, check=False).returncode
            if not queued.exists():
                break
        state.write_text("FAILED" if status else "COMPLETED")
    return 0


def srun(here: Path, *words: str) -> int:
    """Become the command, its output in the files that are named."""
    own = os.environ
    job, task = own.get("SLURM_ARRAY_JOB_ID", own["SLURM_JOB_ID"]), own.get("SLURM_ARRAY_TASK_ID", "")
    names = {"%A": job, "%a": task, "%j": job, "%t": "0"}
    rest = list(words)
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        if option in ("--output", "--error"):
            path = re.sub("%[Aajt]", lambda found: names[found[0]], rest.pop(0))
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1 if option == "--output" else 2)
    (here / "_".join(filter(None, (job, task)))).with_suffix(".pid").write_text(str(os.getpid()))
    os.execvp(rest[0], rest)


def sacct(here: Path, *words: str) -> int:
    """List the states of all tasks."""
    print("JobID|State|NodeList")
    for path in sorted(here.glob("*.state")):
        print(f"{path.stem}|{path.read_text()}|here")
    return 0


def scontrol(here: Path, word: str, task: str) -> int:
    """Queue a task again."""
    assert word == "requeue"
    (here / f"{task}.requeue").write_text(str(time.time()))
    return 0


if __name__ == "__main__":
    part = {f.__name__: f for f in (sbatch, controller, srun, sacct, scontrol)}[sys.argv[1]]
    sys.exit(part(Path(os.environ[HERE]), *sys.argv[2:]))
