"""A pipeline on Spark: a change log becomes a collection, and a table of sums follows it."""
