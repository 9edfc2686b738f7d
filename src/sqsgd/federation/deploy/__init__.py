"""A federation on real machines: certificates, keys, and files for standard parts to run.

Flower's own commands run as child processes; nothing here imports flwr.
"""
