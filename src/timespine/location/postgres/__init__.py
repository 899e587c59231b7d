"""The Consensus port on PostgreSQL."""
