"""Fits a line by MultiWorkerMirroredStrategy, which finds its peers by TF_CONFIG. Knows nothing of Windlass."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable(tf.zeros([8, 1]))


def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Each worker makes its own share of the data."""
    tf.random.set_seed(context.input_pipeline_id)
    features = tf.random.normal([256, 8])
    targets = tf.reduce_sum(features, 1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((features, targets)).repeat().batch(32)


data = iter(strategy.distribute_datasets_from_function(batches))


@tf.function
def step(data: tf.distribute.DistributedIterator) -> tf.Tensor:
    def replica(features: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(features @ weights - targets))
        gradient = tape.gradient(loss, weights)
        everyone = tf.distribute.get_replica_context()
        weights.assign_sub(0.05 * everyone.all_reduce(tf.distribute.ReduceOp.MEAN, gradient))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica, args=next(data)), axis=None)


is_chief = strategy.cluster_resolver.task_id == 0
for number in range(1, args.steps + 1):
    loss = step(data)
    if number % 10 == 0 and is_chief:
        print(f"step {number}/{args.steps} loss {float(loss):.6f}", flush=True)
total = float(tf.reduce_sum(weights))
print(f"worker {strategy.cluster_resolver.task_id} of {strategy.num_replicas_in_sync}: weights {total:.6f}", flush=True)
