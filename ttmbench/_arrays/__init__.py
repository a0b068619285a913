"""What functions of score arrays share: checks of arrays, and which scores are of true pairs."""
