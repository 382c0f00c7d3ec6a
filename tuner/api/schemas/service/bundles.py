"""Code bundles."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from tuner.api.schemas.forms import Model
from tuner.experiment.code.bundles import Bundle as BundleRecord


class Bundle(Model):
    """A zip file with Python code that has been uploaded."""

    sha256: Annotated[
        str,
        Field(description="the SHA-256 of the uploaded zip file; a spec names the bundle by it, in its field `bundle`"),
    ]
    bytes: Annotated[int, Field(description="the size in bytes of the zip file that the ranks load")]

    @classmethod
    def of(cls, found: BundleRecord) -> Self:
        return cls(sha256=found.sha256, bytes=found.bytes)
