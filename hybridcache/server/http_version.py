"""The protocol of a connection, by the version of HTTP that its client speaks."""

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LONGEST_LINE = 65_536
"""Bytes of a request's first line that are waited for."""


class EitherVersion(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn reads it with httptools, HTTP/1.0 as with h11.

    The first is faster, by a fifth of the processor time of a token's event with `tiny`; but it sends streams
    in chunks to clients of HTTP/1.0 too, which has none. The second sends them as they are and closes.
    """

    _line: bytes | None = b""
    """What has come of the first line; None once the version is known."""

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._line is None:
            super().data_received(data)
            return
        self._line += data
        line, end, _ = self._line.partition(b"\n")
        if not end and len(line) < LONGEST_LINE:
            return
        data, self._line = self._line, None
        if line.rstrip().endswith(b" HTTP/1.0"):
            self._hand_over(data)
        else:
            super().data_received(data)

    def _hand_over(self, data: bytes) -> None:
        other = H11Protocol(self.config, self.server_state, self.app_state, self.loop)
        self.connections.discard(self)
        other.connection_made(self.transport)
        self.transport.set_protocol(other)
        other.data_received(data)
