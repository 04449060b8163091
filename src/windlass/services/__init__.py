"""What stays up and must end: TensorBoard, notebooks and deployments of models. Lists, reaches and closes them."""
