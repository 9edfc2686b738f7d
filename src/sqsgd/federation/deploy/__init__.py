"""A federation on real machines: certificates, keys, and files for standard parts to run; no flwr here."""
