"""What ministack lacks for our tests: each module adds one thing by its `extend`."""
