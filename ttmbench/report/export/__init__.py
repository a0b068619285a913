"""Results documents in the formats of others: each says of every number how it was made."""
