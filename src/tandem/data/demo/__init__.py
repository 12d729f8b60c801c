"""The data and the model that `tandem demo` makes for itself: scanned digits and drawn geometry, small enough for a CPU."""
