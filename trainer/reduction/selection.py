"""The reduction that a configuration names."""

from collections.abc import Sequence

from trainer.config.schema import Reduction
from trainer.reduction.method import Method, Setting, plain


def make(config: Reduction, shapes: Sequence[tuple[int, ...]], setting: Setting) -> Method:
    """The method that a configuration names, for gradients of these shapes; empty for a single device, which has nothing to reduce."""
    if setting.parts == 1:
        return Method([])
    if config.name == "half":
        from trainer.reduction.half import half

        return half(config)
    if config.name == "powersgd":
        from trainer.reduction import powersgd_host

        return powersgd_host.make(config, shapes, setting)
    return plain()
