"""Sampling, rules and their enumeration: arrays and fractions in, arrays out."""
