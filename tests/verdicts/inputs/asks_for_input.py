"""A login that a person would answer at a terminal."""

print("epoch 0", flush=True)
key = input("API key: ")
