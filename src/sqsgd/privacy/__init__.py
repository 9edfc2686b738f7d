"""What reports cost and give away: ledger, central guarantee, reconstruction bound, planner."""
