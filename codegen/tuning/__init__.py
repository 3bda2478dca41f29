"""Finds the fastest variants on a device and writes tables of them."""
