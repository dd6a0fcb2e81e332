"""TensorFlow's tutorial "Multi-worker training with Keras", in our words: nothing here knows of Lockstep."""

import json
import os

import mnist_setup
import tensorflow as tf

per_worker_batch_size = 32
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = mnist_setup.mnist_dataset(global_batch_size)

with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()

multi_worker_model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=20)

# The chief saves what counts; the others save, too, as the tutorial asks, and throw it away.
chief = strategy.cluster_resolver.task_id == 0
path = "model.keras" if chief else os.path.join(os.environ.get("TMPDIR", "/tmp"), "other.keras")
multi_worker_model.save(path)

callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir="backup")]
with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()
    history = multi_worker_model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=20, callbacks=callbacks)

loss, accuracy = multi_worker_model.evaluate(multi_worker_dataset, steps=5)
print(f"rank {strategy.cluster_resolver.task_id}: {strategy.num_replicas_in_sync} replicas, accuracy {accuracy:.6f}, loss {loss:.6f}")
