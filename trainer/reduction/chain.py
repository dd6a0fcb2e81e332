"""A method combined with its transport: from one worker's gradients to the mean over all workers."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.network.all_reduce import AllReduce, on_host
from trainer.network.bfloat16 import widen
from trainer.network.sockets_all_reduce import Direct
from trainer.reduction.method import LowRank, Method

Traced = Callable[..., Any]


class Stopwatch:
    """Adds up the seconds of a step's parts."""

    def __init__(self, settle: Callable[[], None]) -> None:
        """Start at zero; `settle` waits until all pending work is done, for functions that return earlier."""
        self._settle = settle
        self.seconds = dict.fromkeys(("forward_backward", "compression", "all_reduce", "apply"), 0.0)

    def time(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, once its work is done."""
        begun = time.perf_counter()
        result = function(*arguments)
        self._settle()
        self.seconds[part] += time.perf_counter() - begun
        return result


ProfiledReduction = Callable[[list[Any], Stopwatch], list[Any]]
"""`(values, watch)`: called from Python, outside a traced function."""


class GraphChain:
    """Computations in TensorFlow ops; each sum is an op of its own."""

    factored = False
    """True if `take` changes anything."""

    @staticmethod
    def take(values: list[Any]) -> list[Any]:
        """Convert `[sums, *gradients]` to what the chain takes, inside the function that computes them."""
        return values

    def __init__(self, method: Method, all_reduce: AllReduce):
        self._computations, self._all_reduce = method.computations, all_reduce

    def __call__(self, values: list[Any]) -> list[Any]:
        """`[sums, *gradients]` summed over all workers, from this worker's; in replica context."""
        for compute in self._computations:
            stayed, sent = compute(values)
            values = [*stayed, *(self.send(sent) if sent else [])]
        return values

    def send(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sums of tensors over all workers."""
        # TensorFlow's collectives need their input on this worker's device; the identity places a traced function's argument there.
        return self._all_reduce([tf.identity(tensor) for tensor in tensors])

    def profiled(self, trace: Callable[[Callable[..., Any]], Traced]) -> ProfiledReduction:
        """The chain with its parts timed; `trace` wraps a function in replica context so that it can be called from outside."""
        computations, send = [trace(compute) for compute in self._computations], trace(self.send)

        def run(values: list[Any], watch: Stopwatch) -> list[Any]:
            for compute in computations:
                stayed, sent = watch.time("compression", compute, values)
                values = [*stayed, *(watch.time("all_reduce", send, sent) if sent else [])]
            return values

        return run


class HostChain:
    """Computations on arrays in host memory, and sums over direct connections: two ops.

    The first needs only the large gradients. Those of the last layers come first: they are sent while the backward pass continues.
    """

    factored = True

    def __init__(self, method: Method, connections: Direct):
        self._first, *self._rest = method.computations
        self._factors, self._connections = method.low_rank, connections
        self._sending = 0.0

    def take(self, values: list[Any]) -> list[Any]:
        """Replace large gradients that are products by their factors; see `GraphChain.take`."""
        sums, *gradients = values
        return [sums, *(_layer_factors(one) if number in self._factors else one for number, one in enumerate(gradients))]

    def __call__(self, values: list[Any]) -> list[Any]:
        """`[sums, *gradients]` summed over all workers, from what `take` returned on this one; in replica context."""
        sums, *gradients = values
        others = [gradient for number, gradient in enumerate(gradients) if number not in self._factors]
        sent, lefts, rights = ([(shape, tf.float32) for shape in shapes] for shapes in zip(*self._factors.values(), strict=True))
        large = [gradients[number] for number in self._factors]
        begin = functools.partial(self._begin, [isinstance(one, LowRank) for one in large])
        begun = on_host(begin, tf.nest.flatten(large), sent)
        uncompressed = [(tuple(tensor.shape), tf.float32) for tensor in (sums, *others)]
        results = on_host(self._finish, [sums, *others, *begun], [*lefts, *uncompressed, *rights])
        count = len(self._factors)
        factors = dict(zip(self._factors, zip(results[:count], results[-count:], strict=True), strict=True))
        small = iter(results[count + 1 : -count])
        return [results[count], *(LowRank(*factors[number]) if number in factors else next(small) for number in range(len(gradients)))]

    def _begin(self, factored: list[bool], arrays: list[np.ndarray]) -> list[np.ndarray]:
        self._sending, left = 0.0, iter(arrays)
        gradients = [LowRank(next(left), next(left)) if two else next(left) for two in factored]
        return [widen(array) for array in self._send(*self._first(gradients))]

    def _finish(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        for compute in self._rest:
            arrays = self._send(*compute(arrays))
        return arrays

    def _send(self, stayed: list[np.ndarray], sent: list[np.ndarray]) -> list[np.ndarray]:
        begun = time.perf_counter()
        results = [*stayed, *(self._connections.all_reduce(sent) if sent else [])]
        self._sending += time.perf_counter() - begun
        return results

    def profiled(self, trace: Callable[[Callable[..., Any]], Traced]) -> ProfiledReduction:
        """The chain with its parts timed; see `GraphChain.profiled`."""
        traced = trace(self.__call__)

        def run(values: list[Any], watch: Stopwatch) -> list[Any]:
            results: list[Any] = watch.time("compression", traced, values)
            watch.seconds["compression"] -= self._sending
            watch.seconds["all_reduce"] += self._sending
            return results

        return run


def _layer_factors(gradient: tf.Tensor) -> tf.Tensor | LowRank:
    """The factors of a fully connected layer's gradient, `inputsᵀ · gradients of its outputs`; any other gradient unchanged.

    Nothing then uses the product itself, so TensorFlow prunes it from the traced function. If anything lies between
    the product and the variable (a cast, a sum of two uses), the gradient stays as it is.
    """
    op = getattr(gradient, "op", None)
    if op is None or op.type != "MatMul" or gradient.dtype != tf.float32:
        return gradient
    if (op.get_attr("transpose_a"), op.get_attr("transpose_b")) != (True, False):
        return gradient
    return LowRank(*op.inputs)


Chain = GraphChain | HostChain


def make_chain(method: Method, all_reduce: AllReduce, connections: Direct | None) -> Chain:
    """The chain of a method: on the host if the method works there."""
    return HostChain(method, connections) if method.low_rank and connections else GraphChain(method, all_reduce)
