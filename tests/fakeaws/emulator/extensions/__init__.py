"""Extensions for features that ministack lacks: each module adds one by its function `extend`."""
