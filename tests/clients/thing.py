"""What clients ask a model for that writes random bytes: it gets an object of its class only if the server held the
model to what the client asked for.  Every field is bounded, so an answer ends."""

from typing import Literal, Optional

import pydantic

SAY = "Describe something."
ENOUGH = 1500  # tokens, white space among them


class Part(pydantic.BaseModel, extra="forbid"):
    kind: Literal["x", "y"]
    size: Optional[float] = pydantic.Field(ge=0, le=10)


class Thing(pydantic.BaseModel, extra="forbid"):
    name: str = pydantic.Field(max_length=8)
    color: Literal["red", "green", "blue"]
    amount: int = pydantic.Field(ge=0, le=1000)
    parts: list[Part] = pydantic.Field(max_length=3)


class Anything(pydantic.BaseModel, extra="allow"):
    """What a client asks for when the server promises an object, and no more."""
