"""Plans as files, tables, charts and explanations."""
