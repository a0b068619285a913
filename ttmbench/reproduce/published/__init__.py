"""Numbers that papers print, table by table: a CSV of the numbers and a YAML of what they mean here."""
