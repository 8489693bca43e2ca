"""From the table `[loss]` of a recipe to its spec, with errors in the user's keys."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from suprank.system import custom_code
from suprank.training.loss_specs.base import LossSpec, loss_specs
from suprank.training.loss_specs.custom import CustomLossSpec


def parse_loss(table: Any) -> LossSpec:
    """The spec that `name` chooses, with errors that say which keys it has."""
    if isinstance(table, LossSpec) or not isinstance(table, Mapping):
        return table  # of what is no table, pydantic says so
    name = table.get("name")
    if not isinstance(name, str):
        problem = "string_type" if "name" in table else "missing"
        raise ValidationError.from_exception_data("loss", [InitErrorDetails(type=problem, loc=("name",), input=name)])
    spec = CustomLossSpec if custom_code.is_custom(name) else loss_specs().get(name)
    if spec is None:
        raise _errors({"name": f"there is no loss {name!r}; {_nearest_name(name)}"}, table)
    unknown = [key for key in table if key not in spec.model_fields]
    if unknown:
        raise _errors({key: f"{name} has no key {key!r}; {_nearest_key(spec, key)}" for key in unknown}, table)
    return spec.model_validate(table)


def _errors(reasons: Mapping[str, str], table: Mapping[str, Any]) -> ValidationError:
    """What is wrong with each of some keys."""
    problems = {key: PydanticCustomError("loss_table", "{reason}", {"reason": reason}) for key, reason in reasons.items()}
    details = [InitErrorDetails(type=problem, loc=(key,), input=table[key]) for key, problem in problems.items()]
    return ValidationError.from_exception_data("loss", details)


def _nearest_name(name: str) -> str:
    near = difflib.get_close_matches(name, loss_specs(), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}choose from {', '.join(loss_specs())}, or name your own as FILE.py:CLASS"


def _nearest_key(spec: type[LossSpec], key: str) -> str:
    if spec is CustomLossSpec:
        return f"write its arguments below [loss.arguments]: loss.arguments.{key}"
    near = difflib.get_close_matches(key, spec.key_names(), n=1)
    hint = f"did you mean {near[0]}?" if near else "leave it out:"
    return f"{hint} its keys are {', '.join(spec.key_names())}"


AnyLossSpec = Annotated[SerializeAsAny[LossSpec], BeforeValidator(parse_loss)]
"""The type of `TrainConfig.loss`."""
