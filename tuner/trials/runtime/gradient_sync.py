"""Detect ranks that train separate models because the model was not wrapped for torch.distributed.

The check must not cause false alarms. It is made at the first report after a step of a torch optimizer. Ranks train
separate models if the default process group is still the group that tuner set up, if it has carried no collective, and
if there is no other process group. DDP and FSDP communicate when they are created or at the first forward pass.
Lightning communicates before it trains. Code that shares gradients by itself communicates before the optimizer's step.
Code without a torch optimizer never gets a warning.
"""

from __future__ import annotations

from typing import Any

MESSAGE = (
    "its ranks train separate models: an optimizer has made a step, and the ranks have not exchanged anything through "
    "torch.distributed; wrap the model with tuner.torch.prepare_model"
)


class GradientSyncCheck:
    """Checks one rank, from the moment when its default process group exists."""

    def __init__(self) -> None:
        import torch.distributed as dist
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._dist = dist
        self._group = dist.group.WORLD
        self._begun = self._state()
        self._stepped = False
        self._hook = register_optimizer_step_post_hook(self._note)

    def check(self) -> str | None:
        """Check at a report whether the ranks train separate models.

        Return a message if they do, an empty string if they do not, and None if that is not known yet.
        """
        if not self._stepped:
            return None
        self.close()
        same = self._begun is not None and self._dist.group.WORLD is self._group and self._state() == self._begun
        return MESSAGE if same else ""

    def close(self) -> None:
        """Stop watching. Repeated calls have no effect."""
        self._hook.remove()

    def _note(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stepped = True

    def _state(self) -> tuple[int, int] | None:
        """Return the number of collectives of the default group, and the number of process groups.

        Return None if torch does not provide these numbers.
        """
        try:
            groups = len(self._dist.distributed_c10d._world.pg_map)
            return int(self._group._get_sequence_number_for_group()), groups
        except (AttributeError, RuntimeError, ValueError):
            return None
