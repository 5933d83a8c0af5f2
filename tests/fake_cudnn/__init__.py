"""What stands in for cuDNN's card: a driver that has none, and the numbers that an operation graph means."""
