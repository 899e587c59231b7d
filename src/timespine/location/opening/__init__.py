"""From the location of a store, as users write it, to its two ports."""
