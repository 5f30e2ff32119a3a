"""The Kafka that a lake is made from: its topics, their ids, their ends, its clients' options."""
