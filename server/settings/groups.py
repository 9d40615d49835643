"""What every group of settings is made of."""

from pydantic import BaseModel, ConfigDict


class Group(BaseModel):
    """One section of the tree: unknown keys and values of another type are faults."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # `port: yes` is a mistake, not port 1
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def require_order(low_name: str, low: float, high_name: str, high: float) -> None:
    """Check that a lower bound is not above the upper one.

    Raises:
        ValueError: it is.
    """
    if low > high:
        raise ValueError(f"{low_name} {low} is above {high_name} {high}")
