"""Test-time matching: Algorithm 1, its variants, training and checkpoints."""
