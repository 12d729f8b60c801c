"""A recipe's layout, run on one CPU machine with a small model of the same kind, before its devices are booked."""
