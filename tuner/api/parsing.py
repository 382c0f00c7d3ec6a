"""Parse HTTP with httptools, which takes a sixth less CPU for a POST than h11 does."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 * 1024
"""The maximum size of a request's head, and of its trailers, in bytes. httptools itself has no limit."""


class Http(HttpToolsProtocol):
    """uvicorn's protocol for httptools, with a limit on the head of a request and on its trailers."""

    _head: int | None = (
        None  # how many bytes of the head followed its first chunk; None: no head has begun, or it is complete
    )
    _fields = 0  # the size in bytes of the fields of the head and the trailers

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = self._fields = 0
        self._begins = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += len(name) + len(value)
        if self._fields > MOST_HEAD:
            raise ValueError("the head of the request is too large")  # uvicorn then answers 400
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        self._begins = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head is not None and not self._begins:  # bytes before the head in its first chunk do not count
            self._head += len(data)
            if self._head > MOST_HEAD:  # a single field is too long
                self.send_400_response("The head of the request is too large.")
