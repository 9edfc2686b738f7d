"""Files: atomic writes and locks, infinity and NaN in JSON, TOML."""
