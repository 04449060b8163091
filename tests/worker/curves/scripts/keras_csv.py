"""Five epochs of Keras with its CSVLogger."""
# mypy: ignore-errors

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy

model = keras.Sequential([keras.layers.Dense(1)])
model.compile(loss="mse", metrics=["mae"])
logger = keras.callbacks.CSVLogger("training.log")
model.fit(numpy.ones((8, 2)), numpy.ones(8), epochs=5, verbose=0, callbacks=[logger])
