"""The score cache: raw scores by model, settings and data digest, and blocks of unfinished pair scores."""
