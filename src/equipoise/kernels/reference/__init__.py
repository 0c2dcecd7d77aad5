"""The definition of every loss in plain PyTorch: value and gradient, on every device and in every dtype."""
