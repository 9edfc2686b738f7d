"""The ready app; all of it is in sqsgd.federation.flower."""
