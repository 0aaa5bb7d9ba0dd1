"""What a run prints and keeps: a table, JSON, and a page with plots."""
