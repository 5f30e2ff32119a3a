"""The targets and commands of operators; each record is previewed before it is written."""
