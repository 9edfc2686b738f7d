"""A federation on real machines: certificates, keys and commands for Flower, started and watched for a try.

Flower's own commands run as child processes; nothing here imports flwr.
"""
