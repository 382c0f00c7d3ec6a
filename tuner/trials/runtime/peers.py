"""Exchange verdicts between the ranks of a worker group."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

from tuner.domain.segments import Verdict
from tuner.trials.messages.channel import ChannelClient, ChannelServer, PeerLost
from tuner.trials.messages.launch import Launch


class ChannelPeers:
    """Implements the session's interface `Peers` with messages over the worker group's channel."""

    def __init__(self, server: ChannelServer | None, client: ChannelClient | None, launch: Launch) -> None:
        self._channel_server, self._channel_client = server, client
        self._segment = launch.segment_id
        self._over = False  # rank 0 has finished
        self._early = deque(self._waiting())

    def _waiting(self) -> Iterator[Any]:
        """Yield the messages for this segment that have already arrived, and drop those for earlier segments.

        Unread messages for earlier segments could fill the socket buffer, which would block rank 0.
        """
        with contextlib.suppress(TimeoutError):
            while self._channel_client is not None:
                message = self._channel_client.verdicts.receive(0)
                if message[1] == self._segment:
                    yield message

    def hand_out(self, report_no: int, verdict: Verdict) -> None:
        assert self._channel_server is not None
        self._channel_server.broadcast(("verdict", self._segment, report_no, verdict))

    def ended(self) -> None:
        assert self._channel_server is not None
        with contextlib.suppress(PeerLost):  # a rank that is gone does not wait
            self._channel_server.broadcast(("ended", self._segment))

    def announce(self) -> None:
        assert self._channel_server is not None
        self._channel_server.broadcast(("report", self._segment))

    def heard(self) -> Literal["report", "verdict", "ended"] | None:
        """Return the kind of rank 0's next message, or None if none has arrived.

        A "report" message is removed. A verdict and all messages after it stay in the queue for `take`.
        """
        if self._over:
            return "ended"
        assert self._channel_client is not None
        while not self._early:
            try:
                message = self._channel_client.verdicts.receive(0)
            except TimeoutError:
                return None
            if message[1] == self._segment:
                self._early.append(message)
        if self._early[0][0] == "report":
            self._early.popleft()
            return "report"
        if self._early[0][0] == "ended":
            self._over = True
            return "ended"
        return "verdict"

    def take(self, report_no: int) -> Verdict:
        assert self._channel_client is not None
        while not self._over:  # no time limit is needed: losing rank 0 raises PeerLost, and the manager detects hangs
            kind, segment, *rest = self._early.popleft() if self._early else self._channel_client.verdicts.receive()
            self._over = kind == "ended" and segment == self._segment
            if kind != "verdict" or segment != self._segment:
                continue
            number, verdict = rest
            if number != report_no:
                raise RuntimeError(
                    f"rank 0 is at report {number} and this rank at report {report_no}: "
                    "every rank must call tuner.report the same number of times"
                )
            answer: Verdict = verdict
            return answer
        return Verdict()  # the group manager warns of unequal counts
