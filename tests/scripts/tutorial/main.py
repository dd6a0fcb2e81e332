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

history = multi_worker_model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=20)
print("accuracy", history.history["accuracy"][-1], "replicas", strategy.num_replicas_in_sync)
