"""What a server is told besides its worker."""

from dataclasses import dataclass

MOST_BODY_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Raises ValueError for settings that no client could use."""

    model_names: tuple[str, ...] = ("default",)
    """What clients call the model; the first one is in answers."""
    api_keys: tuple[str, ...] = ()
    """Any of them is asked for; none: nobody is asked."""
    most_body_bytes: int = MOST_BODY_BYTES
    """Of a request; a longer one is answered 413."""

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise ValueError(f"model_names={self.model_names!r}: give at least one name, none of them empty")
        if not all(key.isascii() and key.isprintable() and key.strip() == key != "" for key in self.api_keys):
            # The key itself is not shown.
            raise ValueError("an API key is empty, begins or ends with a space, or is not printable ASCII")
