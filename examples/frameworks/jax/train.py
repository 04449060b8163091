"""Trains a small classifier on synthetic digits, data parallel over all processes of JAX. Knows nothing of Windlass."""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
args = parser.parse_args()

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
by_rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

rng = np.random.default_rng(jax.process_index())  # each process makes its own share of the data
centres = np.random.default_rng(7).normal(size=(10, 64))
labels = rng.integers(10, size=512)
images = centres[labels] + 0.8 * rng.normal(size=(512, 64))
images, labels = (
    jax.make_array_from_process_local_data(by_rows, images.astype(np.float32)),
    jax.make_array_from_process_local_data(by_rows, labels),
)
weights = jax.device_put(jnp.zeros((64, 10)), everywhere)


def loss_of(weights: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(images @ weights), labels[:, None], axis=1))


@jax.jit
def step(weights: jax.Array, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(loss_of)(weights, images, labels)
    return weights - 0.5 * gradient, loss


for epoch in range(1, args.epochs + 1):
    weights, loss = step(weights, images, labels)
    if jax.process_index() == 0:
        print(f"epoch {epoch}/{args.epochs} loss {float(loss):.4f}", flush=True)
accuracy = float(jnp.mean(jnp.argmax(images @ weights, axis=1) == labels))
size = float(jnp.sum(weights**2))
assert set(multihost_utils.process_allgather(np.array([size])).ravel()) == {np.float32(size)}, "weights differ"
if jax.process_index() == 0:
    print(f"accuracy {100 * accuracy:.1f} % on {len(labels)} samples of {jax.process_count()} processes", flush=True)
jax.distributed.shutdown()
