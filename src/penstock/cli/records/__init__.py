"""`penstock produce` and `penstock consume`: write records to a topic, and print them."""
