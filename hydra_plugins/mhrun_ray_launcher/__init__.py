"""Hydra's launcher for Ray: a job of a sweep is a Ray task, and one that is lost does not take the others with it.

A launcher of our own because hydra-ray-launcher wants boto3, and through it a python-dateutil older than pandas' own.
Nothing of Ray is imported before something is launched: Hydra looks into this file whenever it composes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict


class RayLauncher(Launcher):
    """Launches the jobs of a sweep on Ray.

    Args:
        init: what ``ray.init`` is called with, where Ray does not run yet.
        remote: what each job asks for.
    """

    def __init__(
        self, init: Mapping[str, Any] | None = None, remote: Mapping[str, Any] | None = None
    ) -> None:
        self.init = _plain(init)
        self.remote = _plain(remote)
        self.config: DictConfig | None = None
        self.context: HydraContext | None = None
        self.task: TaskFunction | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take in what Hydra says of the sweep."""
        self.config, self.context, self.task = config, hydra_context, task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all jobs, and return what became of each, in order."""
        import ray

        assert self.config is not None
        assert self.context is not None
        began = not ray.is_initialized()
        if began:
            # Where Ray runs already its workers have another environment than this process.
            ours = {name: value for name, value in os.environ.items() if name.startswith("MHRUN_")}
            ray.init(**{"runtime_env": {"env_vars": ours}, "log_to_driver": True} | self.init)
        try:
            task = ray.remote(**self.remote)(_run)
            waiting = {}
            for number, overrides in enumerate(job_overrides, initial_job_idx):
                config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
                with open_dict(config):
                    config.hydra.job.id = f"{config.hydra.job.name}_{number}"
                    config.hydra.job.num = number
                lost = task.remote(self.context, config, self.task, Singleton.get_state(), os.getcwd())
                waiting[lost] = number
            found: dict[int, JobReturn] = {}
            left = list(waiting)
            while left:
                (ready,), left = ray.wait(left, num_returns=1)
                found[waiting[ready]] = _result(ray, ready)
            return [found[number] for number in sorted(found)]
        finally:
            if began:
                ray.shutdown()


def _result(ray: Any, ready: Any) -> JobReturn:
    """Return what a job returned, or that it was lost."""
    try:
        returned: JobReturn = ray.get(ready)
        return returned
    except Exception as error:  # the worker died once too often, or the job raised: the others go on
        print(f"mhrun: a worker was lost ({type(error).__name__})", file=sys.stderr, flush=True)
        returned = JobReturn(status=JobStatus.FAILED)
        returned.return_value = RuntimeError(f"{type(error).__name__}: a worker was lost")
        return returned


def _run(
    context: HydraContext, config: DictConfig, task: TaskFunction, state: dict[Any, Any], folder: str
) -> JobReturn:
    """Do one job in a worker, in the folder that the sweep was begun in, which all machines share."""
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(state)
    HydraConfig.instance().set_config(config)
    return run_job(
        hydra_context=context,
        task_function=task,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def _plain(node: Any) -> dict[str, Any]:
    found = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else dict(node or {})
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items() if value is not None}
