"""The web page of a lake: pages of plain HTML, made in this process, and what operators do."""
