"""How a lake stands: topics, consumers, what is dead, what is wrong and which command helps."""
