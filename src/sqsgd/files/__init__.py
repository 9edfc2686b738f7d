"""Files on disk: atomic writes, numbers that JSON lacks, TOML."""
