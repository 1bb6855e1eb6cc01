"""Many questions at once, and the figures drawn from their answers."""
