"""What makes reads from remote places need as many round trips as they must, and no more."""
