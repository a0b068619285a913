"""Results documents and the numbers in them: written, read, checked, summed up, compared; no model, no torch."""
