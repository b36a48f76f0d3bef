"""Settings of a replay through a real model."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

DEFAULT_MODEL: Final = "tiny"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Which model runs."""

    model: str
    """A preset, or a folder with a transformers checkpoint."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, used: bool) -> Self | None:
        """Read a resolved configuration; None, with a warning for a model that was set, unless ``used``.

        Raises:
            ValueError: the model is not a name.
        """
        # Configurations that were written before the key was have none.
        model = config.get("worker", {}).get("model", DEFAULT_MODEL)
        if not used:
            if model != DEFAULT_MODEL:
                warnings.warn(f"worker.model={model} is ignored: it needs mode=worker", stacklevel=3)
            return None
        if not isinstance(model, str) or not model:
            raise ValueError(f"worker.model={model}: give a preset or a folder with a checkpoint")
        return cls(model)

    @property
    def geometry(self) -> Mapping[str, Any]:
        """What stands in for the model group, which only the modes without a model choose."""
        return {"name": self.model, "checkpoint": self.model}
