"""What is installed and set up here, against what a run needs."""
