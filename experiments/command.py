"""How every command on a Hydra configuration starts, and how it says what is wrong."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import hydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from hybridcache.experiments.known_settings import unknown_setting

THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
FULL_ERROR = "HYDRA_FULL_ERROR"


def run_command(config_name: str, job: Callable[[DictConfig], Any]) -> None:
    """Run or sweep (``-m``) ``job`` on a configuration of conf/.

    Exit status 2 and one line on stderr for what the user can mend; HYDRA_FULL_ERROR=1 shows the traceback.
    """
    # A sweep runs one job per core, so that a job's arithmetic libraries must not start threads of their own.
    before = {name: os.environ.get(name) for name in (*THREAD_LIMITS, FULL_ERROR)}
    for name in THREAD_LIMITS:
        os.environ.setdefault(name, "1")
    show_trace = bool(os.environ.get(FULL_ERROR))
    # Hydra then raises instead of printing a traceback and leaving.
    os.environ[FULL_ERROR] = "1"
    format_before, warnings.formatwarning = warnings.formatwarning, _format_warning
    try:
        hydra.main(version_base="1.3", config_path="pkg://hybridcache.conf", config_name=config_name)(job)()
    except (ValueError, OSError, HydraException, OmegaConfBaseException) as error:
        if show_trace:
            raise
        print(f"error: {_one_line(error, config_name)}", file=sys.stderr)
        sys.exit(2)
    finally:
        # Who called it in a process of their own goes on as before.
        warnings.formatwarning = format_before
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _one_line(error: Exception, command: str) -> str:
    if (said := unknown_setting(str(error), command)) is not None:
        return said
    if isinstance(error, OverrideParseException):
        key, equals, value = error.override.partition("=")
        if equals and '"' not in value:
            return f"{error.override} cannot be read: give the value quotes of its own, '{key}=\"{value}\"'"
    text = str(error).partition("Config search path:")[0]  # which says nothing to the user
    return " ".join(text.split())


def _format_warning(message: Warning | str, *_: object, **__: object) -> str:
    return f"warning: {message}\n"
