"""A federation on real machines: certificates, keys and scripts for Flower, and a supervisor to try them.

Flower's own commands run as child processes; nothing here imports flwr.
"""
