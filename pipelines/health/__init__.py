"""The health of a lake: topics, consumers, dead letters, problems and the commands that help."""
