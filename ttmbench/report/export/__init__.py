"""Results documents in other formats."""
