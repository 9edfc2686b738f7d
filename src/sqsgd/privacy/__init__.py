"""The promise: what a client has spent, and what an attacker can make of its reports."""
