"""Hydra's source of configurations for the folders of users: every file is checked before it is loaded.

Nothing heavy is imported: Hydra looks into this file whenever it composes.
"""

from __future__ import annotations

import io
from pathlib import Path

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

from mhrun import yaml_file
from mhrun.errors import UserError


class ProjectSource(ConfigSource):
    """A folder of YAML files that may have been written by somebody else; ``mhrun://FOLDER`` in a search path.

    As Hydra's ``file://``, but that files outside the folder are not found, and that `yaml_file.check` has to pass.

    Args:
        provider: who added the folder to the search path.
        path: ``mhrun://`` and the folder.
    """

    @staticmethod
    def scheme() -> str:
        """Return ``mhrun``."""
        return "mhrun"

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a configuration.

        Raises:
            UserError: the file cannot be read, or is no YAML that a configuration may have.
            ConfigLoadError: there is no such file.
        """
        path = self._file(config_path)
        if path is None or not path.exists():
            raise ConfigLoadError(f"Config not found : {config_path}")
        text = yaml_file.read(path)
        yaml_file.check(text, str(path))
        try:
            header = ConfigSource._get_header_dict(text)
        except ValueError as error:
            raise UserError(f"'{path}', line 1: {error}.") from error
        config = OmegaConf.load(io.StringIO(text))
        if not OmegaConf.is_dict(config):
            raise UserError(f"'{path}', line 1: a list; a configuration holds settings, KEY: VALUE.")
        return ConfigResult(self.provider, self.full_path(), config, header)

    def available(self) -> bool:
        """Return whether the folder is there."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Return whether there is such a folder of configurations."""
        path = self._inside(config_path)
        return path is not None and path.is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether there is such a file."""
        path = self._file(config_path)
        return path is not None and path.is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names of what is in a folder."""
        files: list[str] = []
        path = self._inside(config_path)
        for one in sorted(path.iterdir()) if path is not None and path.is_dir() else ():
            self._list_add_result(files, f"{config_path}/{one.name}".lstrip("/"), one.name, results_filter)
        return sorted(set(files))

    def _file(self, config_path: str) -> Path | None:
        """Return the path of a configuration file, or None where it leads out of the folder."""
        return self._inside(self._normalize_file_name(config_path))

    def _inside(self, config_path: str) -> Path | None:
        """Return the path of what is in the folder, or None where it leads out of it."""
        parts = config_path.split("/")
        if config_path.startswith("/") or ".." in parts or "\0" in config_path:
            return None
        return Path(self.path, config_path)
