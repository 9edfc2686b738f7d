"""The ready app, which is implemented in sqsgd.federation.flower."""
