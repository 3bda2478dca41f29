"""Proves every variant: on compilers and drivers, and by its gradients."""
