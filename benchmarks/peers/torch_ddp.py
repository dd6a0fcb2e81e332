"""PyTorch: DistributedDataParallel on Gloo; with one worker, plain PyTorch.

Variants: none (float32), `fp16` and `powersgd` (rank 2), both PyTorch's own communication hooks.
"""

import os
from collections.abc import Iterator

import common
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = {"": 25, "fp16": 25, "powersgd": 100}
"""PyTorch's default is 25: buckets that are ready are sent while the rest is computed. PowerSGD crashes on Gloo with several buckets."""
POWERSGD_RANK, POWERSGD_BEGIN = 2, 2
"""The rank, and the step at which compression begins: the earliest that PyTorch allows, well before the timed steps."""


def main() -> None:
    """Train and time."""
    given = common.Task.parse()
    torch.set_num_threads(given.threads)
    meeting = common.Meeting(given)
    if given.workers > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = given.interface
        host, port = given.first
        dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=given.rank, world_size=given.workers)
    common.measure(given, meeting, trained(given))
    if given.workers > 1:
        dist.destroy_process_group()


def task_model() -> nn.Module:
    """The task's model on images `[batch, 3, 32, 32]` 0..255, in PyTorch's axis order, with Keras' initial weights."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(30 * 30 * 32, 128), nn.ReLU(), nn.Linear(128, common.CLASSES)
    )
    torch.manual_seed(1)
    for layer in model:
        if hasattr(layer, "weight"):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def trained(given: common.Task) -> common.Trained:
    """The model trained as in PyTorch's tutorials, with a fused update and gradients as views of their buckets."""
    model = task_model()
    replica = distributed(model, given.variant) if given.workers > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), common.LEARNING_RATE, momentum=common.MOMENTUM, fused=True)
    loss_of = nn.CrossEntropyLoss()
    images, labels = common.images(given.rank, given.batch)
    # Laid out for PyTorch's convolution before the clock starts.
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 1, 4, 2, 3)))
    classes = torch.from_numpy(labels.astype(np.int64))

    def run(steps: int) -> float:
        for index in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(replica(pixels[index].float().mul_(1 / 255)), classes[index])
            loss.backward()
            optimizer.step()
        return float(loss.item())

    def weights() -> Iterator[np.ndarray]:
        return (parameter.detach().numpy() for parameter in model.parameters())

    settings = {"bucket_cap_mb": BUCKET_MB[given.variant], "gradient_as_bucket_view": True, "sgd": "fused", "layout": "NCHW"}
    return common.Trained(run, weights, {"torch": torch.__version__}, settings)


def distributed(model: nn.Module, variant: str) -> DistributedDataParallel:
    """The model with its gradients averaged over all workers."""
    replica = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB[variant], gradient_as_bucket_view=True)
    if variant == "fp16":
        replica.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif variant == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=POWERSGD_RANK,
            start_powerSGD_iter=POWERSGD_BEGIN,
            use_error_feedback=True,
            warm_start=True,
        )
        replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return replica


if __name__ == "__main__":
    main()
