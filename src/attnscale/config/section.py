"""What every section of the configuration has in common."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from attnscale.files import canonical_json
from attnscale.findings import NAME, SHA256

Name = Annotated[str, Field(pattern=NAME, max_length=64)]
Sha256 = Annotated[str, Field(pattern=SHA256)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]

# Beyond it, floating-point numbers skip whole ones, and before long there are none.
LARGEST = 2**53


class Section(BaseModel):
    """A block of the configuration: unknown keys, silently converted types and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: Any) -> Any:
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) is int and abs(number) > LARGEST:
                raise ValueError(f"a number of {len(str(abs(number)))} digits is too large; give at most {LARGEST}")
        return value

    def canonical(self) -> str:
        """The section as canonical JSON (see `attnscale.files.canonical_json`)."""
        return canonical_json(self.model_dump(mode="json"))
