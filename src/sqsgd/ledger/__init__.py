"""What a client has spent: an append-only account with a cap."""
