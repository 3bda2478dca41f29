"""Which variants are checked in, what was measured, and which is chosen for a call."""
