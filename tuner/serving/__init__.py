"""Export the best checkpoint, and deploy it as an HTTP service. `docs/serving.md` shows both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Deployment", "deployment"]

if TYPE_CHECKING:
    from tuner.serving.ray_serve import Deployment as Deployment
    from tuner.serving.ray_serve import deployment as deployment

else:  # an export does not need Ray, which takes a second to load

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'tuner.serving' has no attribute {name!r}")
        from tuner.serving import ray_serve

        return getattr(ray_serve, name)
