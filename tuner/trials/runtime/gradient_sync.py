"""Detect ranks that train separate models because the model was not wrapped for torch.distributed.

The check is made at the first report after a step of a PyTorch optimizer, and must not raise false alarms. It concludes
that ranks train separate models only if the default process group is still the one that `tuner` set up, no collective
has run on this group, and there is no other process group. DDP and FSDP communicate when they are created or at the
first forward pass, Lightning communicates before it trains, and code that shares gradients by itself communicates
before the optimizer's step. Code without a PyTorch optimizer never gets a warning.
"""

from __future__ import annotations

from typing import Any

MESSAGE = (
    "the ranks train separate models: an optimizer has made a step, and the ranks have not exchanged anything through "
    "torch.distributed; wrap the model with tuner.torch.prepare_model, or a Lightning Trainer with "
    "tuner.lightning.prepare_trainer"
)


class GradientSyncCheck:
    """Checks whether one rank trains separately. Create the object as soon as the default process group exists."""

    def __init__(self) -> None:
        import torch.distributed as dist
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._dist = dist
        self._group: Any = dist.group.WORLD
        self._begun = self._state()
        self._stepped = False
        self._hook = register_optimizer_step_post_hook(self._note)

    def check(self) -> str | None:
        """Check at a report whether the ranks train separate models.

        Return a message if they do, an empty string if they do not, and None if it is too early to tell.
        """
        if not self._stepped:
            return None
        same = self._begun is not None and self._dist.group.WORLD is self._group and self._state() == self._begun
        self.close()
        return MESSAGE if same else ""

    def close(self) -> None:
        """Stop watching for optimizer steps, and drop the process group. Repeated calls have no effect."""
        self._hook.remove()
        self._group = None

    def _note(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stepped = True

    def _state(self) -> tuple[int, int] | None:
        """Return how many collectives have run on the default process group, and how many process groups there are.

        Return None if these numbers are not available in this version of PyTorch.
        """
        try:
            groups = len(self._dist.distributed_c10d._world.pg_map)
            return int(self._group._get_sequence_number_for_group()), groups
        except (AttributeError, RuntimeError, ValueError):
            return None
