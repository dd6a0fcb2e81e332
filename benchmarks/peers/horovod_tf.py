"""Horovod on Gloo with TensorFlow 2.13, the newest version that it builds with.

Variants: `fp16`, Horovod's own compression; `loop`, CHUNK steps in one traced call; `loop-fp16`, both.

Started without horovodrun: the first worker is the rendezvous server and sends its port to the others.
"""

import os
import socket
from typing import Any

import common
import tensorflow_model


def main() -> None:
    """Train and time."""
    given = common.Task.parse()
    check_name(given)
    meeting = common.Meeting(given)
    server, port = rendezvous(given) if given.rank == 0 else (None, 0)
    os.environ.update(environment(given, meeting.share(port)[0]))
    import horovod.tensorflow as hvd

    hvd.init()
    common.measure(given, meeting, trained(given, hvd))
    hvd.shutdown()
    if server:
        server.stop()


def check_name(given: common.Task) -> None:
    """Refuse a host whose name resolves to the loopback: some of Horovod's connections go there, regardless of HOROVOD_GLOO_IFACE."""
    own = socket.gethostbyname(socket.gethostname())
    if given.workers > 1 and own.startswith("127.") and not given.address.startswith("127."):
        raise SystemExit(
            f"error: Horovod connects to {own}, which is what this host's own name {socket.gethostname()} means here; "
            f"give the name its address {given.address} in /etc/hosts"
        )


def rendezvous(given: common.Task) -> tuple[Any, int]:
    """Horovod's own server, through which its workers find each other."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    names = ",".join(f"worker{rank}:1" for rank in range(given.workers))
    server.init(get_host_assignments(parse_hosts(names), given.workers))
    return server, port


def environment(given: common.Task, port: int) -> dict[str, str]:
    """The environment variables that horovodrun would set."""
    return {
        # Each worker counts as a separate host.
        "HOROVOD_HOSTNAME": f"worker{given.rank}",
        "HOROVOD_RANK": str(given.rank),
        "HOROVOD_SIZE": str(given.workers),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(given.rank),
        "HOROVOD_CROSS_SIZE": str(given.workers),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": given.first[0],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": given.interface,
    }


def trained(given: common.Task, hvd: Any) -> common.Trained:
    """The model trained as in Horovod's documentation, with its gradients in one group and a fused update."""
    import tensorflow as tf

    tensorflow_model.set_threads(given.threads)
    model = tensorflow_model.build(tf.keras)
    # The optimizer whose update is a single op per variable.
    optimizer = tf.keras.optimizers.legacy.SGD(common.LEARNING_RATE, momentum=common.MOMENTUM)
    variant = given.variant.split("-")
    compression = hvd.Compression.fp16 if "fp16" in variant else hvd.Compression.none

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True)))
        # One group: all gradients in one all-reduce.
        tape = hvd.DistributedGradientTape(tape, compression=compression, num_groups=1)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    hvd.broadcast_variables(model.variables, root_rank=0)
    run = tensorflow_model.calls(given, step, "loop" in variant)

    versions = common.versions("horovod", "tensorflow-cpu", "keras")
    return common.Trained(run, lambda: tensorflow_model.weights(model), versions, {"num_groups": 1, "sgd": "legacy (fused)"})


if __name__ == "__main__":
    main()
