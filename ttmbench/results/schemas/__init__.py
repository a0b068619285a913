"""JSON Schemas of the files that ttmbench writes."""
