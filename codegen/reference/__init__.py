"""NumPy: what is right, how right is right enough, and inputs to try it on."""
